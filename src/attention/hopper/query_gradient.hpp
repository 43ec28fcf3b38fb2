#pragma once

#include <type_traits>

#include "attention/hopper/backward_memory.hpp"

/// How dQ leaves the registers: by additions to device memory that nobody waits for. Blocks that own
/// different keys add to the same rows. In the deterministic mode they do so in the order of their key tiles:
/// each tile of queries says whose turn it is; that block adds, waits until its additions are done, and names
/// the next one. Two warps beside the computing ones do the waiting.
///
/// Nobody waits for ever: tickets are given out in the order of key tiles, and a block waits for lower
/// tickets alone. Nobody waits long: all blocks visit queries from the last tile to the first, and start one
/// after the other.
namespace annulus::attention::hopper {

/// Calls action(place in p.turns, own key tile, the one behind it) for all query tiles that this block
/// visits.
template <class Tile, class Action>
__device__ __forceinline__ void for_each_visit(const BackwardParameters& p,
                                               const BackwardMemory<Tile>& memory, const Action& action) {
  const int group = p.heads / p.kv_heads;
  for (int n = 0;; ++n) {
    const Work work = memory.work().get(n);
    if (work.head < 0) return;
    const auto [batch, kv_head, residue] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    const std::int64_t head_turns = std::int64_t{p.classes.count} * p.q_tiles;
    int* const turns = p.turns + (batch * p.heads + kv_head * group) * head_turns +
                       p.classes.queries_of(residue) * p.q_tiles;
    Cursor<true> cursor(p.walk.runs + work.first_run, work.runs);
    while (cursor.next()) {
      for (int g = 0; g < group; ++g)
        action(turns + g * head_turns + cursor.tile(), work.tile, cursor.next_own_tile());
    }
  }
}

template <class Tile>
__device__ __forceinline__ void wait_for_turns(const BackwardParameters& p,
                                               const BackwardMemory<Tile>& memory) {
  int parity = 0;
  for_each_visit(p, memory, [&](const int* turn, int own_tile, int) {
    while (load_acquire(turn) != own_tile) {
    }
    wait(memory.seen(), parity ^ 1);  // phases that others have still to see must not be overtaken
    if (threadIdx.x % 32 == 0) arrive(memory.turn());
    parity ^= 1;
  });
}

template <class Tile>
__device__ __forceinline__ void pass_turns(const BackwardParameters& p, const BackwardMemory<Tile>& memory) {
  int parity = 0;
  for_each_visit(p, memory, [&](int* turn, int, int next) {
    wait(memory.added(), parity);
    if (threadIdx.x % 32 == 0) arrive(memory.seen());
    if (threadIdx.x % 32 == 0) store_release(turn, next);
    parity ^= 1;
  });
}

/// A warp's block of dQ: 16 rows × `columns` (64 or 32), of which each lane has columns / 2 numbers, as in an
/// accumulator (wgmma.hpp).
///
/// A warp adds fastest where the numbers of its lanes lie side by side, 512 bytes an instruction. While a
/// launch runs, the block therefore holds its sums in the order of lanes: number i of lane l at place (i / 4,
/// l, i mod 4), where every `columns` places are a row of the block. A kernel beforehand brings them into
/// this order; the last key tile that adds brings them back. Tiles of queries with fewer rows, arrays with
/// gaps between rows and residue classes keep the order of rows.
template <int head_dim, int columns>
struct QueryGradientBlock {
  static constexpr int count = columns / 2;                    ///< numbers of a lane
  static constexpr int lanes_step = 128 / columns * head_dim;  ///< to the next four numbers
  float* start;

  __device__ __forceinline__ float* in_lanes(int lane) const {
    constexpr int lanes_of_row = columns / 4;
    return start + lane / lanes_of_row * head_dim + lane % lanes_of_row * 4;
  }
  /// The row of numbers 0, 1 of each four; the others belong to the row 8 further.
  __device__ __forceinline__ float* in_rows(int lane, std::int64_t row_stride) const {
    return start + lane / 4 * row_stride + lane % 4 * 2;
  }

  __device__ __forceinline__ void add_in_order_of_lanes(const float (&r)[32], int lane) const {
    float* const to = in_lanes(lane);
#pragma unroll
    for (int i = 0; i < count / 4; ++i)
      add_to(to + i * lanes_step, r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
  }
  __device__ __forceinline__ void add_in_order_of_rows(const float (&r)[32], int lane,
                                                       std::int64_t row_stride, int rows) const {
    float* const to = in_rows(lane, row_stride);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane / 4 + 8 * half >= rows) continue;
#pragma unroll
      for (int j = 0; j < columns / 8; ++j)
        add_to(to + 8 * half * row_stride + 8 * j, r[4 * j + 2 * half], r[4 * j + 2 * half + 1]);
    }
  }
  /// Other blocks have written what is read here, so it is read past the L1 cache.
  __device__ __forceinline__ void load_in_order_of_lanes(float (&r)[32], int lane) const {
    const float* const from = in_lanes(lane);
#pragma unroll
    for (int i = 0; i < count / 4; ++i) {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(from + i * lanes_step));
      r[4 * i] = four.x, r[4 * i + 1] = four.y, r[4 * i + 2] = four.z, r[4 * i + 3] = four.w;
    }
  }
  __device__ __forceinline__ void store_in_order_of_lanes(const float (&r)[32], int lane) const {
    float* const to = in_lanes(lane);
#pragma unroll
    for (int i = 0; i < count / 4; ++i) {
      *reinterpret_cast<float4*>(to + i * lanes_step) =
          make_float4(r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
    }
  }
  __device__ __forceinline__ void load_in_order_of_rows(float (&r)[32], int lane) const {
    const float* const from = in_rows(lane, head_dim);
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      const float2 pair = __ldcg(reinterpret_cast<const float2*>(from + i % 2 * 8 * head_dim + i / 2 * 8));
      r[2 * i] = pair.x, r[2 * i + 1] = pair.y;
    }
  }
  __device__ __forceinline__ void store_in_order_of_rows(const float (&r)[32], int lane) const {
    float* const to = in_rows(lane, head_dim);
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      *reinterpret_cast<float2*>(to + i % 2 * 8 * head_dim + i / 2 * 8) = make_float2(r[2 * i], r[2 * i + 1]);
    }
  }
};

/// How the computing warpgroups share dQ of a tile of queries: 64 columns each of the same rows (the last one
/// what is left of them), in `chunks` times; or 64 rows each of all columns.
template <class Tile>
struct QueryGradientShare {
  static constexpr bool splits_columns = Tile::q_rows == 64;
  static constexpr int chunks = Tile::head_dim > 128 ? 2 : 1;

  ANNULUS_FUNCTION static constexpr int first_column(int group, int chunk) {
    return splits_columns ? (group * chunks + chunk) * 64 : 0;
  }
  ANNULUS_FUNCTION static constexpr int first_row(int group) { return splits_columns ? 0 : group * 64; }

  /// Calls action(columns, an integral constant) for those of a share that starts at `first_column`.
  template <class Action>
  __device__ __forceinline__ static void with_columns(int first_column, const Action& action) {
    if constexpr (Tile::head_dim % 64 == 0) {
      action(std::integral_constant<int, 64>{});
    } else if (first_column + 64 <= Tile::head_dim) {
      action(std::integral_constant<int, 64>{});
    } else {
      action(std::integral_constant<int, Tile::head_dim % 64>{});
    }
  }
};

/// A computing warpgroup's share.
template <class T, class Tile>
class QueryGradient : public QueryGradientShare<Tile> {
  using Share = QueryGradientShare<Tile>;
  template <int columns>
  using Block = QueryGradientBlock<Tile::head_dim, columns>;

 public:
  __device__ __forceinline__ QueryGradient(const BackwardParameters& p, const BackwardMemory<Tile>& memory,
                                           int group, int lane)
      : p_(p),
        memory_(memory),
        start_(p.dq.data),
        first_column_(Share::first_column(group, 0)),
        lane_(lane) {}

  __device__ __forceinline__ void set_head(int batch, int head, int residue) {
    start_ = p_.dq.at(batch, head, p_.classes.row(first_row(), residue)) + first_column_;
  }
  __device__ __forceinline__ void await_turn() {
    if (p_.turns == nullptr) return;
    wait(memory_.turn(), parity_);
    parity_ ^= 1;
  }
  /// dQ of the visited tile += r. What stands between the product that gives r and its additions is time
  /// that the tensor cores wait for: hardly more than one multiplication for the address.
  __device__ __forceinline__ void add(float (&r)[32], int chunk, const Visit& visit) {
    if constexpr (!scaled_probabilities<T>) {
#pragma unroll
      for (int i = 0; i < 32; ++i) r[i] *= p_.dq_factor;
    }
    Share::with_columns(first_column_ + chunk * 64, [&](auto columns) {
      if (TileRun::sums(visit.how) == in_order_of_lanes) {
        Block<columns>{of_head(visit.head) + chunk * 64 +
                       std::int64_t{visit.tile} * (Tile::q_rows * Tile::head_dim)}
            .add_in_order_of_lanes(r, lane_);
      } else {
        add_otherwise<columns>(r, chunk, visit);
      }
    });
  }
  __device__ __forceinline__ void end_turn() const {
    if (p_.turns == nullptr) return;
    __syncwarp();
    if (lane_ == 0) arrive(memory_.added());
  }

 private:
  /// Of this warp in a tile.
  __device__ __forceinline__ static int first_row() {
    const int thread = anew(static_cast<int>(threadIdx.x)) - warpgroup;
    return Share::first_row(thread / warpgroup) + thread % warpgroup / 32 * 16;
  }
  __device__ __forceinline__ float* of_head(int in_group) const {
    return start_ + in_group * p_.dq.head_stride;
  }
  template <int columns>
  __device__ __forceinline__ void add_otherwise(const float (&r)[32], int chunk, const Visit& visit) const {
    const int first = visit.tile * Tile::q_rows, sums = TileRun::sums(visit.how);
    const std::int64_t row_stride = p_.classes.count * p_.dq.row_stride;
    const Block<columns> block{of_head(visit.head) + chunk * 64 + first * row_stride};
    if (sums == in_order_of_rows) {
      return block.add_in_order_of_rows(r, lane_, row_stride, visit.rows - first_row());
    }
    if (sums == first_of_lanes) return block.store_in_order_of_lanes(r, lane_);
    if (sums == only_one) return block.store_in_order_of_rows(r, lane_);
    float sum[32];
    block.load_in_order_of_lanes(sum, lane_);
#pragma unroll
    for (int i = 0; i < Block<columns>::count; ++i) sum[i] += r[i];
    __syncwarp();  // all lanes have read
    block.store_in_order_of_rows(sum, lane_);
  }

  const BackwardParameters& p_;
  const BackwardMemory<Tile>& memory_;
  float* start_;  ///< of this warp's rows and columns of tile 0
  int first_column_, lane_, parity_ = 0;
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
  const bool visited = action != Prepare::zero_all && p.walk.first_visitors[tile] >= 0;
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
    using Share = QueryGradientShare<Tile>;
    const int lane = static_cast<int>(threadIdx.x) % 32, group = static_cast<int>(threadIdx.x) / warpgroup;
    const int warp_row = static_cast<int>(threadIdx.x) % warpgroup / 32 * 16;
    const std::int64_t row = std::int64_t{first} + Share::first_row(group) + warp_row;
    for (int chunk = 0; chunk < Share::chunks; ++chunk) {
      const int column = Share::first_column(group, chunk);
      Share::with_columns(column, [&](auto columns) {
        const QueryGradientBlock<Tile::head_dim, columns> block{p.dq.at(head / p.heads, head % p.heads, row) +
                                                                column};
        float r[32];
        action == Prepare::order_of_rows ? block.load_in_order_of_lanes(r, lane)
                                         : block.load_in_order_of_rows(r, lane);
        __syncwarp();  // all lanes have read
        action == Prepare::order_of_rows ? block.store_in_order_of_rows(r, lane)
                                         : block.store_in_order_of_lanes(r, lane);
      });
    }
  }
}

}  // namespace annulus::attention::hopper
