#pragma once

#include <annulus/base/dtype.hpp>
#include <type_traits>

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/hopper/ptx/pipeline_state.hpp"
#include "attention/kernels/hopper/ptx/tensor_map.hpp"
#include "attention/kernels/hopper/schedule/dilation_classes.hpp"
#include "attention/kernels/hopper/schedule/tile_scheduler.hpp"
#include "attention/kernels/hopper/tile/shapes.hpp"

namespace annulus::attention::hopper {

/// Whether probabilities take up the scale, which then costs nothing: dQ and dK need none, and dV is divided
/// by it at its end. Not in fp16, where small probabilities would lose bits.
template <class T>
inline constexpr bool scaled_probabilities = std::is_same_v<T, bfloat16>;

struct BackwardParameters {
  RowMaps q, d_out, k, v, dq_maps;  ///< boxes of q_rows (q, d_out, dq) or kv_rows (k, v)
  gpu::Rows<const float> lse, d;
  /// Made of them for TMA (prepare_query_tiles): (batch × heads × classes, query tiles, lse2 and D, rows of a
  /// tile).
  float* statistics;
  gpu::Rows<float> dq, dk, dv;
  TileTables tile_tables;
  TileOrder order;    ///< of key tiles
  int* tile_counter;  ///< 0 at the start
  /// (batch × heads, classes, query tiles): which key tile adds to dQ next. Null: additions in any order.
  int* dq_semaphores;
  int q_tiles;     ///< of a class
  bool fresh_dkv;  ///< dK and dV hold nothing yet and are written
  /// Heads of a group come one after the other instead of taking turns tile by tile. Blocks that keep an
  /// order do so only where all key tiles visit about as many queries: a block whose loop is shorter than
  /// those before it would wait at its second head until they have ended their first.
  bool head_by_head;
  int heads, kv_heads, q_rows, kv_rows;
  int group;            ///< heads that read a kv head
  bool lists_of_heads;  ///< heads of queries have block lists of their own
  DilationClasses classes;
  float factor;  ///< of scores, to powers of two: scale · log2(e)
  /// Probabilities are multiplied by 2^log2_shift. What dQ, dK and dV then lack.
  float log2_shift, dq_factor, dk_factor, dv_factor;
  int columns;           ///< of a row in memory
  float tangent_factor;  ///< of capped tiles, as in ForwardParameters: `factor` is that of the cap
};

/// LSE and D of a query row.
struct RowStatistics {
  float lse, d;

  template <class Parameters>
  __device__ __forceinline__ static RowStatistics of(const Parameters& p, int batch, int head,
                                                     int dilation_class, int row) {
    const bool is_row = row < p.classes.rows(p.q_rows, dilation_class);
    const std::int64_t at = p.classes.row(row, dilation_class);
    return {is_row ? *p.lse.at(batch, head, at) : -std::numeric_limits<float>::infinity(),
            is_row ? *p.d.at(batch, head, at) : 0.0f};
  }
  __device__ __forceinline__ bool sees_keys() const { return lse != -std::numeric_limits<float>::infinity(); }
  /// What the row means for its probabilities: 2^shift · exp(S − LSE) = 2^(factor · q·k − lse2). Rows without
  /// keys, and rows behind the end, get +∞, which makes their probabilities zero.
  template <class Parameters>
  __device__ __forceinline__ float lse2(const Parameters& p) const {
    return sees_keys() ? fmaf(lse, gpu::log2_e, -p.log2_shift) : std::numeric_limits<float>::infinity();
  }
  __device__ __forceinline__ float d_or_zero() const { return sees_keys() ? d : 0.0f; }
};

/// What the consumer warps are told about the queries of a stage, so that they need not iterate themselves.
struct TileInfo {
  static constexpr int partial = 1, bits = 2,  ///< as in TileRun
      last = 4;                                ///< of this work

  /// `how`: of its run.
  __device__ __forceinline__ static int flags_of(int how, bool is_last) {
    return (TileRun::partial(how) ? partial : 0) + (TileRun::bits(how) ? bits : 0) + (is_last ? last : 0);
  }
  __device__ __forceinline__ static int head_and_flags(int head_in_group, int flags) {
    return head_in_group * 8 + flags;
  }
  __device__ __forceinline__ static void put(std::uint32_t address, int tile, int head_and_flags) {
    store_shared(address, make_int2(tile, head_and_flags));
  }
  __device__ __forceinline__ static int head_in_group(int flags) { return flags / 8; }
  __device__ __forceinline__ static int tile(std::uint32_t address) { return load_shared_int(address); }
  __device__ __forceinline__ static int flags(std::uint32_t address) { return load_shared_int(address + 4); }
};

/// Shared memory: K and V, stages of Q and dO with their LSE and D, as many of dS, buffers of dQ, barriers,
/// what to work on. Without dQ: P instead of dS and dQ, or the sums that consumers exchange.
template <class Tile>
struct BackwardSharedMemory {
  static constexpr int q_atom = Tile::q_rows * atom_row_bytes, kv_atom = Tile::kv_rows * atom_row_bytes;
  static constexpr int q_bytes = q_atom * Tile::atoms, d_out_bytes = q_atom * Tile::v_atoms,
                       k_bytes = kv_atom * Tile::atoms, v_bytes = kv_atom * Tile::v_atoms;
  static constexpr int ds_atom = kv_atom,
                       ds_bytes = Tile::has_dq ? ds_atom * (Tile::q_rows / atom_columns) : 0;
  static constexpr int p_bytes = Tile::has_dq || Tile::alternates ? 0 : Tile::q_rows * Tile::kv_rows * 4;
  static constexpr int sums_bytes = Tile::alternates ? Tile::kv_rows * Tile::head_dim * 4 : 0;  // dK or dV
  static constexpr int v_offset = k_bytes, q_offset = k_bytes + v_bytes;
  static constexpr int d_out_offset = q_offset + Tile::stages * q_bytes;
  static constexpr int ds_offset = d_out_offset + Tile::stages * d_out_bytes;
  static constexpr int p_offset = ds_offset + Tile::stages * ds_bytes;
  static constexpr int sums_offset = p_offset + p_bytes;
  static constexpr int gradient_offset = sums_offset + 2 * sums_bytes;
  /// A box of dQ, and all of them.
  static constexpr int gradient_box = Tile::q_rows * 128,
                       gradient_bytes = gradient_box * Tile::gradient_boxes;
  static constexpr int lse2_offset = gradient_offset + Tile::gradient_stages * gradient_bytes,
                       d_offset = lse2_offset + Tile::stages * Tile::q_rows * 4;
  static constexpr int statistics_bytes = Tile::statistics_bytes;
  static constexpr int tile_info_offset = d_offset + Tile::stages * Tile::q_rows * 4;
  static constexpr int work_offset = (tile_info_offset + Tile::stages * 8 + 15) / 16 * 16;
  static constexpr int barrier_offset = work_offset + WorkTileBuffer::bytes;
  static constexpr int bytes = barrier_offset + 8 * (1 + 8 * Tile::stages);
  static_assert(bytes <= 227 * 1024);

  std::uint32_t start;
  /// `dynamic`: aligned to 1024 bytes.
  __device__ __forceinline__ explicit BackwardSharedMemory(const void* dynamic)
      : start(gpu::shared_address(dynamic)) {}

  __device__ __forceinline__ std::uint32_t k() const { return start; }
  __device__ __forceinline__ std::uint32_t v() const { return start + v_offset; }
  __device__ __forceinline__ std::uint32_t q(int stage) const { return start + q_offset + stage * q_bytes; }
  __device__ __forceinline__ std::uint32_t d_out(int stage) const {
    return start + d_out_offset + stage * d_out_bytes;
  }
  __device__ __forceinline__ std::uint32_t ds(int stage) const {
    return start + ds_offset + stage * ds_bytes;
  }
  __device__ __forceinline__ std::uint32_t p() const { return start + p_offset; }
  __device__ __forceinline__ std::uint32_t sums(int of_group) const {
    return start + sums_offset + of_group * sums_bytes;
  }
  __device__ __forceinline__ std::uint32_t gradient(int stage) const {
    return start + gradient_offset + (Tile::gradient_stages > 1 ? stage * gradient_bytes : 0);
  }
  __device__ __forceinline__ std::uint32_t lse2(int stage) const {
    return start + lse2_offset + stage * Tile::q_rows * 4;
  }
  __device__ __forceinline__ std::uint32_t d(int stage) const {
    return start + d_offset + stage * Tile::q_rows * 4;
  }
  __device__ __forceinline__ std::uint32_t tile_info(int stage) const {
    return start + tile_info_offset + stage * 8;
  }
  __device__ __forceinline__ WorkTileBuffer work() const { return WorkTileBuffer(start + work_offset); }

  __device__ __forceinline__ std::uint32_t kv_empty() const { return barrier(0); }
  __device__ __forceinline__ std::uint32_t q_full(int stage) const { return barrier(1 + stage); }
  __device__ __forceinline__ std::uint32_t q_empty(int stage) const {
    return barrier(1 + Tile::stages + stage);
  }
  __device__ __forceinline__ std::uint32_t d_out_full(int stage) const {
    return barrier(1 + 2 * Tile::stages + stage);
  }
  __device__ __forceinline__ std::uint32_t d_out_empty(int stage) const {
    return barrier(1 + 3 * Tile::stages + stage);
  }
  /// Barriers of the buffers of dQ.
  __device__ __forceinline__ std::uint32_t gradient_full(int stage) const {
    return barrier(1 + 4 * Tile::stages + stage);
  }
  __device__ __forceinline__ std::uint32_t gradient_empty(int stage) const {
    return barrier(1 + 5 * Tile::stages + (Tile::gradient_stages > 1 ? stage : 0));
  }
  /// Barriers of the stages of dS, where consumers take turns at dQ.
  __device__ __forceinline__ std::uint32_t ds_full(int stage) const {
    return barrier(1 + 6 * Tile::stages + stage);
  }
  __device__ __forceinline__ std::uint32_t ds_empty(int stage) const {
    return barrier(1 + 7 * Tile::stages + stage);
  }
  /// Barriers of K and V, where consumers alternate: only one of them waits for the first visit.
  __device__ __forceinline__ std::uint32_t k_full() const { return barrier(1 + 4 * Tile::stages); }
  __device__ __forceinline__ std::uint32_t v_full() const { return barrier(1 + 5 * Tile::stages); }
  /// Barriers of P, at head dimensions 192 and 256.
  __device__ __forceinline__ std::uint32_t p_full() const { return barrier(1 + 4 * Tile::stages); }
  __device__ __forceinline__ std::uint32_t p_empty() const { return barrier(1 + 5 * Tile::stages); }

  __device__ void init() const {
    constexpr int consumer_warps = 4 * Tile::consumers;  // one arrival a warp
    constexpr int readers = Tile::alternates ? 4 : consumer_warps;
    barrier_init(kv_empty(), consumer_warps + 2);  // and both producer warps
    for (int stage = 0; stage < Tile::stages; ++stage) {
      barrier_init(q_full(stage), 1);
      barrier_init(d_out_full(stage), 1);
      barrier_init(q_empty(stage), readers);
      barrier_init(d_out_empty(stage), readers);
      if (!Tile::has_dq) continue;
      barrier_init(gradient_full(stage), Tile::rotates_dq ? 4 : consumer_warps);
      if (Tile::rotates_dq) {
        barrier_init(ds_full(stage), consumer_warps);
        barrier_init(ds_empty(stage), 4);
      }
      if (stage < Tile::gradient_stages) barrier_init(gradient_empty(stage), 1);
    }
    if (Tile::alternates) {
      barrier_init(k_full(), 1);
      barrier_init(v_full(), 1);
    } else if (!Tile::has_dq) {
      barrier_init(p_full(), 4);
      barrier_init(p_empty(), 4);
    }
    work().init(consumer_warps + (Tile::has_dq ? 4 : 2));
    barrier_init_fence();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const { return start + barrier_offset + 8 * i; }
};

}  // namespace annulus::attention::hopper
