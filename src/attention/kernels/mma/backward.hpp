#pragma once

#include "attention/kernels/gpu/capped_power.hpp"
#include "attention/kernels/mma/mask_tiles.hpp"
#include "attention/kernels/mma/products.hpp"

namespace annulus::attention::mma {

/// A block owns 64 rows of one side, a warp 16 of them.
struct BackwardShape {
  static constexpr int warps = 4, threads = 32 * warps, own_rows = 16 * warps;
};

/// What a query row says to its probabilities: exp(S − lse) = 2^(factor · q·k − lse2). Rows without keys
/// (LSE = −inf) get lse2 = +inf, which makes their probabilities zero.
struct QueryStatistics {
  float lse2, d;
  __device__ static QueryStatistics of(float lse, float d) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    if (lse == -infinity) return {infinity, 0.0f};
    return {lse * log2_e, d};
  }
};

/// Shared memory of both kernels: two tiles that the block owns, two stages of two tiles of the other side,
/// and LSE and d of the walked queries.
template <int head_dim>
struct BackwardTiles {
  using Own = Tile<BackwardShape::own_rows, head_dim>;
  using Inner = Tile<inner_rows, head_dim>;
  static constexpr int bytes = 2 * Own::bytes + 4 * Inner::bytes;
  Own own[2];
  Inner inner[2][2];  // [stage]

  __device__ explicit BackwardTiles(std::uint32_t address) {
    for (int i = 0; i < 2; ++i) {
      own[i].address = address + i * Own::bytes;
      for (int j = 0; j < 2; ++j) {
        inner[i][j].address = address + 2 * Own::bytes + (2 * i + j) * Inner::bytes;
      }
    }
  }

  /// Starts to copy the keys and values of a tile of the walked side.
  template <class T>
  __device__ __forceinline__ void load_keys(const Input<T>& in, int batch, int kv_head, const WalkTile& tile,
                                            int columns, int stage) const {
    inner[stage][0].template load<BackwardShape::threads>(in.k.at(batch, kv_head, tile.first),
                                                          in.k.row_stride, tile.rows, columns);
    inner[stage][1].template load<BackwardShape::threads>(in.v.at(batch, kv_head, tile.first),
                                                          in.v.row_stride, tile.rows, columns);
  }
};

using Scores = Accumulator<1, inner_rows / 8>;

/// Turns products of queries and keys into probabilities.
template <bool capped>
struct ScorePowers {
  gpu::CapFactors factors;

  template <class T>
  __device__ __forceinline__ explicit ScorePowers(const Input<T>& in)
      : factors{capped ? in.scale / in.soft_cap : 0.0f, (capped ? in.soft_cap : in.scale) * log2_e} {}

  /// `product` becomes its probability; `gradient`, that of a capped score, one of the score before the cap.
  __device__ __forceinline__ void take(float& product, float& gradient, float lse2) const {
    if constexpr (capped) {
      const auto power = gpu::CappedPower::of(product, factors, lse2);
      product = power.value;
      gradient *= power.slope;
    } else {
      product = power_of_two(fmaf(product, factors.power, -lse2));
    }
  }
};

/// Probabilities that the words of a partial tile do not allow become 0.
__device__ __forceinline__ void mask_probabilities(Scores& p, const std::uint64_t* words) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint64_t word = words[row_of(0, 2 * half)] >> (threadIdx.x % 4 * 2);
#pragma unroll
    for (int n = 0; n < inner_rows / 8; ++n) {
      if ((word >> (8 * n) & 1) == 0) p.value[0][n][2 * half] = 0.0f;
      if ((word >> (8 * n + 1) & 1) == 0) p.value[0][n][2 * half + 1] = 0.0f;
    }
  }
}

/// result += factor · gradient, for a warp's rows: row_at(0), row_at(1), …
template <int columns, class RowAt>
__device__ void add_rows(const Rows<float>& result, int batch, int head, const RowAt& row_at, int rows,
                         int columns_in_memory, const Accumulator<1, columns>& gradient, float factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(0, 2 * half);
    if (row >= rows) continue;
    float* const to = result.at(batch, head, row_at(row));
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      if (8 * n >= columns_in_memory) continue;
      auto& pair = *reinterpret_cast<float2*>(to + column_of(n, 0));
      pair.x += factor * gradient.value[0][n][2 * half];
      pair.y += factor * gradient.value[0][n][2 * half + 1];
    }
  }
}

/// dK and dV of the queries of a stage. `statistics`: LSE and d of these queries; `words`: of the warp's
/// keys, where the tile is partial, else null.
template <class T, int head_dim, bool capped>
__device__ __forceinline__ void add_queries(const BackwardTiles<head_dim>& memory, int stage, int warp_first,
                                            const float (&statistics)[2][inner_rows],
                                            const std::uint64_t* words, const ScorePowers<capped>& powers,
                                            Accumulator<1, head_dim / 8>& dk,
                                            Accumulator<1, head_dim / 8>& dv) {
  Scores p, ds;
  multiply_rows<T>(p, memory.own[0], warp_first, memory.inner[stage][0]);
  multiply_rows<T>(ds, memory.own[1], warp_first, memory.inner[stage][1]);
#pragma unroll
  for (int n = 0; n < inner_rows / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = column_of(n, e);
      const QueryStatistics row = QueryStatistics::of(statistics[0][query], statistics[1][query]);
      ds.value[0][n][e] -= row.d;
      powers.take(p.value[0][n][e], ds.value[0][n][e], row.lse2);
    }
  }
  if (words != nullptr) mask_probabilities(p, words);
#pragma unroll
  for (int n = 0; n < inner_rows / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) ds.value[0][n][e] *= p.value[0][n][e];
  }
  add_weighted<T>(dv, p, memory.inner[stage][1]);
  add_weighted<T>(dk, ds, memory.inner[stage][0]);
}

/// dK and dV: a block owns keys of a kv head and walks over the queries of all heads that read it. Scores are
/// computed transposed, (keys, queries), so that Pᵀ and dSᵀ are left factors where they are. Sums have a
/// fixed order.
template <class T, int head_dim, bool clipped, bool capped, bool of_heads>
__global__ void __launch_bounds__(BackwardShape::threads, 2)
    key_gradient_kernel(const __grid_constant__ BackwardProblem<T> problem) {
  using Shape = BackwardShape;
  extern __shared__ __align__(128) unsigned char dynamic[];
  __shared__ WalkMemory<Shape::own_rows> walk_memory;
  __shared__ HeadMask<of_heads> mask;
  __shared__ float statistics[2][2][inner_rows];  // LSE and d, [stage]
  const BackwardTiles<head_dim> memory(shared_address(dynamic));
  const Input<T>& in = problem.in;
  const int columns = clipped ? in.head_dim : head_dim;
  const int first = static_cast<int>(blockIdx.x) * Shape::own_rows;  // causal: early keys have most queries
  const int kv_head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int group = in.heads / in.kv_heads;
  int head = kv_head * group;
  const int head_end = head + group;
  mask.turn_to(in, batch, head);
  const int rows = min(Shape::own_rows, count_of(mask.keys(in)) - first);
  if (of_heads && rows <= 0) return;  // fewer keys are listed
  TileWalk<Owner::keys, Shape::own_rows, Shape::threads, of_heads> walk(mask.rule(in), mask.keys(in), first,
                                                                        rows, in.q_positions, walk_memory);

  const auto load = [&](const WalkTile& tile, int head, int stage) {
    memory.inner[stage][0].template load<Shape::threads>(in.q.at(batch, head, tile.first), in.q.row_stride,
                                                         tile.rows, columns);
    memory.inner[stage][1].template load<Shape::threads>(problem.d_out.at(batch, head, tile.first),
                                                         problem.d_out.row_stride, tile.rows, columns);
    const int row = static_cast<int>(threadIdx.x) % inner_rows,
              which = static_cast<int>(threadIdx.x) / inner_rows;
    const bool valid = row < tile.rows;
    copy_4_bytes(shared_address(&statistics[stage][which][row]),
                 (which == 0 ? problem.lse : problem.d).at(batch, head, tile.first + (valid ? row : 0)),
                 valid);
    if (tile.partial) walk.write_words(tile, stage);
  };
  static_assert(Shape::threads == 2 * inner_rows, "one thread copies one LSE or one d");

  /// Finds the next tile behind row `from` of the head, or of the heads after it.
  const auto next_tile = [&](int from) {
    WalkTile next = walk.next(from);
    if constexpr (of_heads) {
      while (next.rows == 0 && ++head < head_end) {
        mask.turn_to(in, batch, head);
        walk.start_again();
        next = walk.next(walk.begin());
      }
    } else {  // each head has tiles
      if (next.rows == 0 && ++head < head_end) next = walk.next(walk.begin());
    }
    return next;
  };

  WalkTile tile = of_heads ? next_tile(walk.begin()) : walk.next(walk.begin());
  if (tile.rows == 0) return;
  memory.own[0].template load<Shape::threads>(in.k.at(batch, kv_head, first), in.k.row_stride, rows, columns);
  memory.own[1].template load<Shape::threads>(in.v.at(batch, kv_head, first), in.v.row_stride, rows, columns);
  load(tile, head, 0);

  const int warp_first = static_cast<int>(threadIdx.x / 32) * 16;
  const ScorePowers<capped> powers(in);
  Accumulator<1, head_dim / 8> dk, dv;
  dk.clear();
  dv.clear();
  for (int stage = 0; tile.rows > 0; stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // this stage has come, the other has been used
    const WalkTile next = next_tile(tile.first + inner_rows);
    if (next.rows > 0) load(next, head, stage ^ 1);

    add_queries<T>(memory, stage, warp_first, statistics[stage],
                   tile.partial ? walk_memory.allowed[stage] + warp_first : nullptr, powers, dk, dv);
    tile = next;
  }
  const auto row_at = [&](int row) { return first + warp_first + row; };
  add_rows(problem.dk, batch, kv_head, row_at, rows - warp_first, columns, dk, in.scale);
  add_rows(problem.dv, batch, kv_head, row_at, rows - warp_first, columns, dv, 1.0f);
}

/// dQ of the keys of a stage. `statistics`: of the thread's two rows; `words` as above, of queries.
template <class T, int head_dim, bool capped>
__device__ __forceinline__ void add_keys(const BackwardTiles<head_dim>& memory, int stage, int warp_first,
                                         const QueryStatistics (&statistics)[2], const std::uint64_t* words,
                                         const ScorePowers<capped>& powers,
                                         Accumulator<1, head_dim / 8>& dq) {
  Scores p, ds;
  multiply_rows<T>(p, memory.own[0], warp_first, memory.inner[stage][0]);
  multiply_rows<T>(ds, memory.own[1], warp_first, memory.inner[stage][1]);
#pragma unroll
  for (int n = 0; n < inner_rows / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (capped) ds.value[0][n][e] -= statistics[e / 2].d;
      powers.take(p.value[0][n][e], ds.value[0][n][e], statistics[e / 2].lse2);
    }
  }
  if (words != nullptr) mask_probabilities(p, words);
#pragma unroll
  for (int n = 0; n < inner_rows / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float d = capped ? 0.0f : statistics[e / 2].d;
      ds.value[0][n][e] = p.value[0][n][e] * (ds.value[0][n][e] - d);
    }
  }
  add_weighted<T>(dq, ds, memory.inner[stage][0]);
}

/// `statistics` of the thread's two rows of a warp's: row_at(0), row_at(1), …
template <class T, class RowAt>
__device__ __forceinline__ void load_statistics(const BackwardProblem<T>& problem, int batch, int head,
                                                const RowAt& row_at, int rows,
                                                QueryStatistics (&statistics)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(0, 2 * half);
    statistics[half] = row < rows ? QueryStatistics::of(*problem.lse.at(batch, head, row_at(row)),
                                                        *problem.d.at(batch, head, row_at(row)))
                                  : QueryStatistics{std::numeric_limits<float>::infinity(), 0.0f};
  }
}

/// dQ of the tiles of a walk from `tile` on, which load(tile, 0) has been called for. `allowed`: words of
/// both stages, for all rows of the block.
template <class T, int head_dim, bool capped, class Walk, class Load>
__device__ __forceinline__ void add_keys_from(const BackwardTiles<head_dim>& memory, Walk& walk,
                                              WalkTile tile, const Load& load,
                                              const std::uint64_t (&allowed)[2][BackwardShape::own_rows],
                                              int warp_first, const QueryStatistics (&statistics)[2],
                                              const ScorePowers<capped>& powers,
                                              Accumulator<1, head_dim / 8>& dq) {
  for (int stage = 0; tile.rows > 0; stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // this stage has come, the other has been used
    const WalkTile next = walk.next(tile.first + inner_rows);
    if (next.rows > 0) load(next, stage ^ 1);
    add_keys<T>(memory, stage, warp_first, statistics, tile.partial ? allowed[stage] + warp_first : nullptr,
                powers, dq);
    tile = next;
  }
}

/// dQ: a block owns queries and walks over the keys, so that nobody else adds to its rows.
template <class T, int head_dim, bool clipped, bool capped, bool of_heads>
__global__ void __launch_bounds__(BackwardShape::threads, 2)
    query_gradient_kernel(const __grid_constant__ BackwardProblem<T> problem) {
  using Shape = BackwardShape;
  extern __shared__ __align__(128) unsigned char dynamic[];
  __shared__ WalkMemory<Shape::own_rows> walk_memory;
  __shared__ HeadMask<of_heads> mask;
  const BackwardTiles<head_dim> memory(shared_address(dynamic));
  const Input<T>& in = problem.in;
  const int columns = clipped ? in.head_dim : head_dim;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::own_rows;  // causal: longest first
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / (in.heads / in.kv_heads);
  const int rows = min(Shape::own_rows, static_cast<int>(in.q_positions.count) - first);
  mask.turn_to(in, batch, head);
  TileWalk<Owner::queries, Shape::own_rows, Shape::threads, of_heads> walk(
      mask.rule(in), in.q_positions, first, rows, mask.keys(in), walk_memory);

  const auto load = [&](const WalkTile& tile, int stage) {
    memory.load_keys(in, batch, kv_head, tile, columns, stage);
    if (tile.partial) walk.write_words(tile, stage);
  };

  const WalkTile tile = walk.next(walk.begin());
  if (tile.rows == 0) return;
  memory.own[0].template load<Shape::threads>(in.q.at(batch, head, first), in.q.row_stride, rows, columns);
  memory.own[1].template load<Shape::threads>(problem.d_out.at(batch, head, first), problem.d_out.row_stride,
                                              rows, columns);
  load(tile, 0);

  const int warp_first = static_cast<int>(threadIdx.x / 32) * 16;
  const ScorePowers<capped> powers(in);
  const auto row_at = [&](int row) { return first + warp_first + row; };
  QueryStatistics statistics[2];
  load_statistics(problem, batch, head, row_at, rows - warp_first, statistics);
  Accumulator<1, head_dim / 8> dq;
  dq.clear();
  add_keys_from<T>(memory, walk, tile, load, walk_memory.allowed, warp_first, statistics, powers, dq);
  add_rows(problem.dq, batch, head, row_at, rows - warp_first, columns, dq, in.scale);
}

}  // namespace annulus::attention::mma
