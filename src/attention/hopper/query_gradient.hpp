#pragma once

#include "attention/hopper/backward_memory.hpp"

/// How dQ leaves the registers: by additions to device memory that nobody waits for. Blocks that own
/// different keys add to the same rows. In the deterministic mode they do so in the order of their key tiles:
/// each tile of queries has a counter; a block whose turn it is adds, waits until its additions are done, and
/// counts one up. Two warps beside the computing ones do the waiting.
///
/// Nobody waits for ever: tickets are given out in the order of key tiles, and a block waits for lower
/// tickets alone. Nobody waits long: all blocks visit queries from the last tile to the first, and start one
/// after the other.
namespace annulus::attention::hopper {

/// Calls action(head, query tile, own key tile) for all that this block visits.
template <class Tile, class Action>
__device__ __forceinline__ void for_each_visit(const BackwardParameters& p,
                                               const BackwardMemory<Tile>& memory, const Action& action) {
  const int group = p.heads / p.kv_heads;
  for (int n = 0;; ++n) {
    const Work work = memory.work().get(n);
    if (work.head < 0) return;
    const int kv_head = work.head % p.kv_heads, batch = work.head / p.kv_heads;
    Cursor<true> cursor(p.walk.runs + work.first_run, work.runs);
    while (cursor.next()) {
      for (int g = 0; g < group; ++g) action(batch * p.heads + kv_head * group + g, cursor.tile(), work.tile);
    }
  }
}

template <class Tile>
__device__ __forceinline__ void wait_for_turns(const BackwardParameters& p,
                                               const BackwardMemory<Tile>& memory) {
  int parity = 0;
  for_each_visit(p, memory, [&](int head, int tile, int own_tile) {
    const int* const counter = p.turns + std::int64_t{head} * p.q_tiles + tile;
    const int own_turn = own_tile - p.walk.first_visitors[tile];
    while (load_acquire(counter) < own_turn) {
    }
    wait(memory.seen(), parity ^ 1);  // phases that others have still to see must not be overtaken
    if (threadIdx.x % 32 == 0) arrive(memory.turn());
    parity ^= 1;
  });
}

template <class Tile>
__device__ __forceinline__ void pass_turns(const BackwardParameters& p, const BackwardMemory<Tile>& memory) {
  int parity = 0;
  for_each_visit(p, memory, [&](int head, int tile, int) {
    wait(memory.added(), parity);
    if (threadIdx.x % 32 == 0) arrive(memory.seen());
    if (threadIdx.x % 32 == 0) increment_release(p.turns + std::int64_t{head} * p.q_tiles + tile);
    parity ^= 1;
  });
}

/// A warp's block of dQ: 16 rows × 64 columns, of which each lane has 32 numbers, as in an accumulator
/// (wgmma.hpp).
///
/// A warp adds fastest where the numbers of its lanes lie side by side, 512 bytes an instruction. While a
/// launch runs, the block therefore holds its sums in the order of lanes: number i of lane l at place (i / 4,
/// l, i mod 4), where every 64 places are a row of the block. A kernel beforehand brings them into this
/// order; the last key tile that adds brings them back. Tiles of queries with fewer rows, and arrays with
/// gaps between rows, keep the order of rows.
template <int head_dim>
struct QueryGradientBlock {
  float* start;

  __device__ __forceinline__ float* in_lanes(int lane) const {
    return start + lane / 16 * head_dim + lane % 16 * 4;
  }
  static constexpr int lanes_step = 2 * head_dim;  // to the next four numbers
  /// The row of numbers 0, 1 of each four; the others belong to the row 8 further.
  __device__ __forceinline__ float* in_rows(int lane, std::int64_t row_stride) const {
    return start + lane / 4 * row_stride + lane % 4 * 2;
  }

  __device__ __forceinline__ void add_in_order_of_rows(const float (&r)[32], int lane,
                                                       std::int64_t row_stride, int rows) const {
    float* const to = in_rows(lane, row_stride);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane / 4 + 8 * half >= rows) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        add_to(to + 8 * half * row_stride + 8 * j, r[4 * j + 2 * half], r[4 * j + 2 * half + 1]);
    }
  }
  /// Other blocks have written what is read here, so it is read past the L1 cache.
  __device__ __forceinline__ void load_in_order_of_lanes(float (&r)[32], int lane) const {
    const float* const from = in_lanes(lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(from + i * lanes_step));
      r[4 * i] = four.x, r[4 * i + 1] = four.y, r[4 * i + 2] = four.z, r[4 * i + 3] = four.w;
    }
  }
  __device__ __forceinline__ void store_in_order_of_lanes(const float (&r)[32], int lane) const {
    float* const to = in_lanes(lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<float4*>(to + i * lanes_step) =
          make_float4(r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
    }
  }
  __device__ __forceinline__ void load_in_order_of_rows(float (&r)[32], int lane) const {
    const float* const from = in_rows(lane, head_dim);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 pair = __ldcg(reinterpret_cast<const float2*>(from + i % 2 * 8 * head_dim + i / 2 * 8));
      r[2 * i] = pair.x, r[2 * i + 1] = pair.y;
    }
  }
  __device__ __forceinline__ void store_in_order_of_rows(const float (&r)[32], int lane) const {
    float* const to = in_rows(lane, head_dim);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      *reinterpret_cast<float2*>(to + i % 2 * 8 * head_dim + i / 2 * 8) = make_float2(r[2 * i], r[2 * i + 1]);
    }
  }
};

/// The two computing warpgroups have 64 columns each of the same rows, or 64 rows each.
template <class Tile>
inline constexpr bool splits_query_gradient_by_columns = Tile::q_rows == 64;

/// A computing warpgroup's share of dQ of a tile of queries: 64 rows × 64 columns, of which the other
/// warpgroup has the other columns (head_dim 128) or rows (head_dim 64).
template <class T, class Tile>
class QueryGradient {
 public:
  static constexpr bool splits_columns = splits_query_gradient_by_columns<Tile>;

  __device__ __forceinline__ QueryGradient(const BackwardParameters& p, const BackwardMemory<Tile>& memory,
                                           int group, int warp_row, int lane)
      : p_(p),
        memory_(memory),
        first_row_((splits_columns ? 0 : group * 64) + warp_row),
        first_column_(splits_columns ? group * 64 : 0),
        lane_(lane) {}

  __device__ __forceinline__ void set_head(int batch, int head) {
    lane_start_ =
        QueryGradientBlock<Tile::head_dim>{p_.dq.at(batch, head, first_row_) + first_column_}.in_lanes(lane_);
  }
  /// Moves on to the next head, or back by some.
  __device__ __forceinline__ void move_heads(int heads) { lane_start_ += heads * p_.dq.head_stride; }

  /// dQ of query tile `tile` += r. What stands between the product that gives r and its additions is time
  /// that the tensor cores wait for: hardly more than one multiplication for the address.
  __device__ __forceinline__ void add(float (&r)[32], int tile, int sums) {
    if constexpr (!scaled_probabilities<T>) {
#pragma unroll
      for (int i = 0; i < 32; ++i) r[i] *= p_.dq_factor;
    }
    await_turn();
    if (sums == in_order_of_lanes) {
      float* const to = lane_start_ + std::int64_t{tile} * (Tile::q_rows * Tile::head_dim);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        add_to(to + i * QueryGradientBlock<Tile::head_dim>::lanes_step, r[4 * i], r[4 * i + 1], r[4 * i + 2],
               r[4 * i + 3]);
      }
    } else {
      add_otherwise(r, tile, sums);
    }
    end_turn();
  }

 private:
  __device__ __forceinline__ void add_otherwise(const float (&r)[32], int tile, int sums) const {
    const std::int64_t first = std::int64_t{tile} * Tile::q_rows;
    const QueryGradientBlock<Tile::head_dim> block{
        lane_start_ - (lane_ / 16 * Tile::head_dim + lane_ % 16 * 4) + first * p_.dq.row_stride};
    if (sums == in_order_of_rows) {
      block.add_in_order_of_rows(r, lane_, p_.dq.row_stride,
                                 p_.q_rows - static_cast<int>(first) - first_row_);
      return;
    }
    if (sums == first_of_lanes) return block.store_in_order_of_lanes(r, lane_);
    if (sums == only_one) return block.store_in_order_of_rows(r, lane_);
    float sum[32];
    block.load_in_order_of_lanes(sum, lane_);
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] += r[i];
    __syncwarp();  // all lanes have read
    block.store_in_order_of_rows(sum, lane_);
  }
  __device__ __forceinline__ void await_turn() {
    if (p_.turns == nullptr) return;
    wait(memory_.turn(), parity_);
    parity_ ^= 1;
  }
  __device__ __forceinline__ void end_turn() const {
    if (p_.turns == nullptr) return;
    __syncwarp();
    if (lane_ == 0) arrive(memory_.added());
  }

  const BackwardParameters& p_;
  const BackwardMemory<Tile>& memory_;
  int first_row_, first_column_, lane_, parity_ = 0;
  float* lane_start_ = nullptr;
};

enum class Prepare {
  order_of_lanes,  ///< brings dQ of whole tiles that somebody visits into the order of lanes
  order_of_rows,   ///< and back
  zero,            ///< clears what the launch adds to, or nobody visits
  zero_all,        ///< clears everything
};

/// Works on dQ before or behind a launch. A block has the warps that compute a tile: blockIdx.x is the tile,
/// blockIdx.y the head.
template <class Tile, Prepare action>
__global__ void prepare_query_gradient(const __grid_constant__ BackwardParameters p, bool contiguous) {
  const int tile = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const bool visited = p.walk.first_visitors[tile] >= 0;
  const int first = tile * Tile::q_rows, rows = min(Tile::q_rows, p.q_rows - first);
  const bool whole = contiguous && rows == Tile::q_rows;
  if constexpr (action == Prepare::zero || action == Prepare::zero_all) {
    if (action == Prepare::zero && visited && whole) return;
    for (int i = static_cast<int>(threadIdx.x); i < rows * (Tile::head_dim / 4);
         i += static_cast<int>(blockDim.x)) {
      const int row = i / (Tile::head_dim / 4), column = i % (Tile::head_dim / 4) * 4;
      *reinterpret_cast<float4*>(p.dq.at(head / p.heads, head % p.heads, first + row) + column) =
          make_float4(0, 0, 0, 0);
    }
  } else {
    if (!visited || !whole) return;
    const int lane = static_cast<int>(threadIdx.x) % 32, group = static_cast<int>(threadIdx.x) / warpgroup;
    const int warp_row = static_cast<int>(threadIdx.x) % warpgroup / 32 * 16;
    constexpr bool splits_columns = splits_query_gradient_by_columns<Tile>;
    const std::int64_t row = std::int64_t{first} + (splits_columns ? 0 : group * 64) + warp_row;
    const QueryGradientBlock<Tile::head_dim> block{p.dq.at(head / p.heads, head % p.heads, row) +
                                                   (splits_columns ? group * 64 : 0)};
    float r[32];
    action == Prepare::order_of_rows ? block.load_in_order_of_lanes(r, lane)
                                     : block.load_in_order_of_rows(r, lane);
    __syncwarp();  // all lanes have read
    action == Prepare::order_of_rows ? block.store_in_order_of_rows(r, lane)
                                     : block.store_in_order_of_lanes(r, lane);
  }
}

}  // namespace annulus::attention::hopper
