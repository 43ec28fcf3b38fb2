#pragma once

#include "attention/kernels/hopper/backward/products.hpp"
#include "attention/kernels/hopper/backward/shared_memory.hpp"

/// dQ alone, at head dimensions 192 and 256 and for fine block lists: a block owns queries as in the forward
/// pass and loops over their keys, so that dQ stays in registers, in a fixed order. S = Q·Kᵀ, dP = dO·Vᵀ, dQ
/// += scale·dS·K.
namespace annulus::attention::hopper {

struct QueryGradientParameters {
  RowMaps q, d_out, k, v;  ///< boxes of 64 rows (q, d_out) or kv_rows (k, v)
  gpu::Rows<const float> lse, d;
  gpu::Rows<float> dq;
  TileTables tile_tables;
  TileOrder order;
  int* tile_counter;  ///< 0 at the start
  bool fresh;         ///< dQ holds nothing yet and is written
  int heads, kv_heads, q_rows;
  DilationClasses classes;
  float factor, log2_shift, dq_factor;  ///< as in BackwardParameters
  int columns;                          ///< of a row in memory
  float tangent_factor;                 ///< as in BackwardParameters
};

/// Shared memory: Q, dO, stages of K and V, barriers, what to work on.
template <class Tile>
struct QueryGradientSharedMemory {
  static constexpr int q_atom = Tile::rows_in_memory * atom_row_bytes,
                       kv_atom = Tile::kv_rows * atom_row_bytes;
  static constexpr int q_bytes = q_atom * Tile::atoms, d_out_bytes = q_atom * Tile::v_atoms,
                       k_bytes = kv_atom * Tile::atoms, v_bytes = kv_atom * Tile::v_atoms;
  // K of a tile stays for dQ while S of the next ones is computed.
  static constexpr int k_stages = Tile::head_dim > 192      ? 2
                                  : Tile::blocks_of_sm == 1 ? 4
                                                            : 3,
                       v_stages = Tile::head_dim <= 192 ? 2 : 1;
  static constexpr int d_out_offset = q_bytes, k_offset = q_bytes + d_out_bytes,
                       v_offset = k_offset + k_stages * k_bytes;
  static constexpr int work_offset = v_offset + v_stages * v_bytes,
                       tile_info_offset = work_offset + WorkTileBuffer::bytes;
  static constexpr int barrier_offset = tile_info_offset + k_stages * 8;
  static constexpr int bytes = barrier_offset + 8 * (3 + 2 * (k_stages + v_stages));
  static_assert(Tile::blocks_of_sm * (bytes + 1024) <= 228 * 1024);

  std::uint32_t start;
  /// `dynamic`: aligned to 1024 bytes.
  __device__ __forceinline__ explicit QueryGradientSharedMemory(const void* dynamic)
      : start(gpu::shared_address(dynamic)) {}

  __device__ __forceinline__ std::uint32_t q() const { return start; }
  __device__ __forceinline__ std::uint32_t d_out() const { return start + d_out_offset; }
  __device__ __forceinline__ std::uint32_t k(int stage) const { return start + k_offset + stage * k_bytes; }
  __device__ __forceinline__ std::uint32_t v(int stage) const { return start + v_offset + stage * v_bytes; }
  __device__ __forceinline__ WorkTileBuffer work() const { return WorkTileBuffer(start + work_offset); }
  __device__ __forceinline__ std::uint32_t tile_info(int stage) const {
    return start + tile_info_offset + stage * 8;
  }
  __device__ __forceinline__ std::uint32_t q_full() const { return barrier(0); }
  __device__ __forceinline__ std::uint32_t d_out_full() const { return barrier(1); }
  __device__ __forceinline__ std::uint32_t queries_empty() const { return barrier(2); }  ///< Q and dO
  __device__ __forceinline__ std::uint32_t k_full(int stage) const { return barrier(3 + stage); }
  __device__ __forceinline__ std::uint32_t k_empty(int stage) const { return barrier(3 + k_stages + stage); }
  __device__ __forceinline__ std::uint32_t v_full(int stage) const {
    return barrier(3 + 2 * k_stages + stage);
  }
  __device__ __forceinline__ std::uint32_t v_empty(int stage) const {
    return barrier(3 + 2 * k_stages + v_stages + stage);
  }

  __device__ void init() const {
    constexpr int readers = 4 * Tile::consumers;  // one arrival a warp
    barrier_init(q_full(), 1);
    barrier_init(d_out_full(), 1);
    barrier_init(queries_empty(), readers);
    for (int stage = 0; stage < k_stages; ++stage) {
      barrier_init(k_full(stage), 1);
      barrier_init(k_empty(stage), readers);
    }
    for (int stage = 0; stage < v_stages; ++stage) {
      barrier_init(v_full(stage), 1);
      barrier_init(v_empty(stage), readers);
    }
    work().init(readers);
    barrier_init_fence();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const { return start + barrier_offset + 8 * i; }
};

/// The producer thread, in the order of use: K, Q, V, dO, and then K and V of each tile.
template <class Tile>
__device__ __forceinline__ void query_gradient_producer(const QueryGradientParameters& p,
                                                        const QueryGradientSharedMemory<Tile>& memory) {
  using Memory = QueryGradientSharedMemory<Tile>;
  TileScheduler queue(p.order, p.tile_tables, Tile::heads, 1, p.tile_counter, p.fresh);
  PipelineState<Memory::k_stages> k_at;
  PipelineState<Memory::v_stages> v_at;
  int q_parity = 0;
  for (int n = 0;; ++n) {
    const WorkTile work = queue.next();
    memory.work().put(n, work);
    if (work.head < 0) return;
    const auto [batch, heads, dilation_class] =
        HeadAndClass::of(work.head, p.heads / Tile::heads, p.classes.count);
    const int head = heads * Tile::heads;
    const int kv_head = head / (p.heads / p.kv_heads), kv_class = p.classes.keys_of(dilation_class);
    const auto load_queries = [&](int atoms, const RowMaps& map, std::uint32_t to, std::uint32_t full) {
      arrive_expecting(full, atoms * Memory::q_atom);
#pragma unroll
      for (int atom = 0; atom < atoms; ++atom) {
#pragma unroll
        for (int group = 0; group < Tile::consumers; ++group) {
          map.of_class(dilation_class)
              .load(to + atom * Memory::q_atom + group * 64 * atom_row_bytes, full, atom * atom_columns,
                    work.tile * Tile::q_rows + Tile::first_row(group), head + Tile::head_of(group), batch);
        }
      }
    };
    const auto load_keys = [&](int atoms, const RowMaps& map, std::uint32_t to, std::uint32_t full,
                               int tile) {
      arrive_expecting(full, atoms * Memory::kv_atom);
#pragma unroll
      for (int atom = 0; atom < atoms; ++atom) {
        map.of_class(kv_class).load(to + atom * Memory::kv_atom, full, atom * atom_columns,
                                    tile * Tile::kv_rows, kv_head, batch);
      }
    };
    bool first = true;
    TileIterator<false> cursor(p.tile_tables.runs + work.first_run, work.runs);
    while (cursor.next()) {
      wait(memory.k_empty(k_at.stage), k_at.parity ^ 1);
      TileInfo::put(memory.tile_info(k_at.stage), cursor.tile(),
                    TileInfo::flags_of(cursor.how(), !cursor.more()));
      load_keys(Tile::atoms, p.k, memory.k(k_at.stage), memory.k_full(k_at.stage), cursor.tile());
      k_at.advance();
      if (first) {
        wait(memory.queries_empty(), q_parity ^ 1);
        q_parity ^= 1;
        load_queries(Tile::atoms, p.q, memory.q(), memory.q_full());
      }
      wait(memory.v_empty(v_at.stage), v_at.parity ^ 1);
      load_keys(Tile::v_atoms, p.v, memory.v(v_at.stage), memory.v_full(v_at.stage), cursor.tile());
      v_at.advance();
      if (first) load_queries(Tile::v_atoms, p.d_out, memory.d_out(), memory.d_out_full());
      first = false;
    }
  }
}

/// A warpgroup that computes 64 queries. `lists_of_heads`: heads have block lists of their own.
// Longer than other functions: dS of a tile stays in registers until the next step has issued dQ of it, so
// that two steps share it, and the counts that wgmma_wait takes depend on the order of all products. Nobody
// has measured whether cutting it would cost registers.
template <class T, class Tile, bool lists_of_heads>
__device__ __forceinline__ void query_gradient_consumer(const QueryGradientParameters& p,
                                                        const QueryGradientSharedMemory<Tile>& memory) {
  using Memory = QueryGradientSharedMemory<Tile>;
  constexpr int D = Tile::head_dim, N = Tile::kv_rows;
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup - 1);
  // What few places ask for is computed there again: registers for it would be taken from the products.
  const auto thread = [] { return recomputed(static_cast<int>(threadIdx.x)); };
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto own_column = [&] { return thread() % 4 * 2; };
  const auto row_in_tile = [&] {
    const int here = thread();
    return Tile::first_row(group) + here % warpgroup / 32 * 16 + here % 32 / 4;
  };
  const auto place_of = [&](int number) {
    auto place = HeadAndClass::of(number, p.heads / Tile::heads, p.classes.count);
    place.head = place.head * Tile::heads + Tile::head_of(group);
    return place;
  };
  const MatrixDescriptor q = MatrixDescriptor::of(memory.q() + group * 64 * atom_row_bytes, Memory::q_atom),
                         d_out = MatrixDescriptor::of(memory.d_out() + group * 64 * atom_row_bytes,
                                                      Memory::q_atom);
  const MatrixDescriptor k = MatrixDescriptor::of(memory.k(0), Memory::kv_atom),
                         v = MatrixDescriptor::of(memory.v(0), Memory::kv_atom);
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };

  PipelineState<Memory::k_stages> k_at;
  PipelineState<Memory::v_stages> v_at;
  int q_parity = 0;
  for (int n = 0;; ++n) {
    const WorkTile work = memory.work().get(n);
    if (work.head < 0) return;
    const auto own_row = [&] { return recomputed(work.tile) * Tile::q_rows + row_in_tile(); };
    float lse2[2], d[2];
    {
      const auto [batch, head, dilation_class] = place_of(work.head);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto row = RowStatistics::of(p, batch, head, dilation_class, own_row() + 8 * i);
        lse2[i] = row.lse2(p);
        d[i] = row.d_or_zero();
      }
    }
    float dq[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dq[i] = 0.0f;

    // r (64 queries × N keys) = rows · (K or V)ᵀ
    const auto issue = [&](int depth, float(&r)[N / 2], MatrixDescriptor rows, MatrixDescriptor keys) {
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < depth / 16; ++step) {
        Wgmma<T, N>::template shared<false, false>(r, rows + (step / 4 * Memory::q_atom + step % 4 * 32),
                                                   keys + (step / 4 * Memory::kv_atom + step % 4 * 32),
                                                   step > 0);
      }
      wgmma_commit();
    };
    std::uint32_t ds[N / 4];  // of the tile before, until dQ has it
    const auto issue_dq = [&] {
      wgmma_fence();
      issue_gradient<T, N, D>(dq, ds, k + k_at.before() * Memory::k_bytes);
      wgmma_commit();
    };
    const auto finish_dq = [&] {
      fence_operand(dq);
      fence_operand(ds);
      release(memory.k_empty(k_at.before()));
    };
    // S and dP run one tile ahead of dQ where there are registers for that, so that the exponentials of one
    // tile are taken beside dQ of the other.
    constexpr bool runs_ahead = D <= 192;
    // dS of a tile, and dQ of the one before or of this one; false if it is the last.
    const auto step = [&](auto is_ahead) {
      constexpr bool ahead = is_ahead();
      float s[N / 2], dp[N / 2];
      wait(memory.k_full(k_at.stage), k_at.parity);
      const int flags = uniform(TileInfo::flags(memory.tile_info(k_at.stage)));
      issue(D, s, q, k + k_at.stage * Memory::k_bytes);
      if constexpr (ahead) issue_dq();
      wait(memory.v_full(v_at.stage), v_at.parity);
      issue(Tile::v_dim, dp, d_out, v + v_at.stage * Memory::v_bytes);
      wgmma_wait<ahead ? 2 : 1>();
      fence_operand(s);
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = s[4 * j + e];
          if constexpr (Tile::capped) {
            const auto power = gpu::CappedPower::of(x, {p.tangent_factor, p.factor}, lse2[e / 2]);
            x = power.value * power.slope;
          } else {
            x = gpu::power_of_two(fmaf(x, p.factor, -lse2[e / 2]));
          }
        }
      }
      // A branch keeps the exponentials before the wait for dP (backward/kernel.hpp).
      if ((flags & TileInfo::partial) != 0) {
        const int tile = uniform(TileInfo::tile(memory.tile_info(k_at.stage)));
        RowSpan spans[2];  // loaded here: they would take registers from the products
        const int table = lists_of_heads ? p.tile_tables.table_of(recomputed(work.head) * Tile::heads) : 0;
        load_spans(spans, p.tile_tables, p.classes, recomputed(work.head) % p.classes.count, table, p.q_rows,
                   own_row());
        for_each_outside<N>(spans, tile * N + own_column(), [&](int where) { s[where] = 0.0f; });
        if ((flags & TileInfo::bits) != 0) {
          const std::int64_t first_word = table * p.tile_tables.bits.words_of_list;
          for_each_missing_bit<N, lists_of_heads>(p.tile_tables.bits, first_word, own_row(), p.q_rows, tile,
                                                  own_column(), [&](int where) { s[where] = 0.0f; });
        }
      }
      if constexpr (ahead) {
        wgmma_wait<1>();
        finish_dq();
      }
      k_at.advance();
      wgmma_wait<0>();
      fence_operand(dp);
      release(memory.v_empty(v_at.stage));
      v_at.advance();
#pragma unroll
      for (int i = 0; i < N / 4; ++i)
        ds[i] = gpu::pack<T>(s[2 * i] * (dp[2 * i] - d[i % 2]), s[2 * i + 1] * (dp[2 * i + 1] - d[i % 2]));
      if constexpr (!runs_ahead) {
        issue_dq();
        wgmma_wait<0>();
        finish_dq();
      }
      return (flags & TileInfo::last) == 0;
    };

    if (work.runs > 0) {
      wait(memory.q_full(), q_parity);
      wait(memory.d_out_full(), q_parity);
      q_parity ^= 1;
      bool more = true;
      if constexpr (runs_ahead) more = step(std::false_type{});
      while (more) more = step(std::bool_constant<runs_ahead>{});
      release(memory.queries_empty());
      if constexpr (runs_ahead) {
        issue_dq();
        wgmma_wait<0>();
        finish_dq();
      }
    }
    const auto [batch, head, dilation_class] = place_of(recomputed(work.head));
    leave_gradient<D, Tile::clipped>(p.dq, p.fresh, p.dq_factor, dq, batch, head, p.classes, dilation_class,
                                     p.q_rows, p.columns, own_row(), own_column());
  }
}

template <class T, class Tile, bool lists_of_heads>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks_of_sm)
    query_gradient_kernel(const __grid_constant__ QueryGradientParameters p) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const QueryGradientSharedMemory<Tile> memory(dynamic);
  start_block(memory, {&p.q, &p.d_out, &p.k, &p.v});
  if (threadIdx.x < warpgroup) {
    setmaxnreg_dec<Tile::producer_registers>();
    if (threadIdx.x == 0) query_gradient_producer<Tile>(p, memory);
  } else {
    setmaxnreg_inc<Tile::consumer_registers>();
    query_gradient_consumer<T, Tile, lists_of_heads>(p, memory);
  }
}

}  // namespace annulus::attention::hopper
