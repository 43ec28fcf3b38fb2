#pragma once

#include "attention/mma/products.hpp"

namespace annulus::attention::mma {

/// ScoreOperands in plain pointers; scores (batch, heads, keys, queries).
template <class T>
struct ScoreProblem {
  Rows<const T> q, k;
  PositionMap k_positions;
  std::int64_t first_query = 0;
  float scale = 1.0f;
  int batch = 0, heads = 0, kv_heads = 0, queries = 0;
  float* scores = nullptr;
};

/// A block owns 128 keys of a kv head, a warp 32 of them, and multiplies them with all queries of the head's
/// group, 64 at a time: keys are read once, and most of the traffic is the scores that are written.
struct ScoreShape {
  static constexpr int warps = 4, threads = 32 * warps, blocks = 2, own_rows = 16 * blocks * warps;
  static constexpr int inner_rows = 64;
};

template <int head_dim>
struct ScoreMemory {
  Tile<ScoreShape::own_rows, head_dim> k;
  Tile<ScoreShape::inner_rows, head_dim> q;
  static constexpr int bytes = decltype(k)::bytes + decltype(q)::bytes;

  __device__ explicit ScoreMemory(std::uint32_t address) : k{address}, q{address + decltype(k)::bytes} {}
};

/// A row of scores and the position of its key.
struct ScoreRow {
  std::int64_t row = 0, position = 0;
  bool exists = false;
};

/// Scores (column, column + 1) of a row that has `queries`.
template <class T>
__device__ __forceinline__ void store_scores(const ScoreProblem<T>& problem, float* row,
                                             std::int64_t position, int column, float first, float second) {
  const auto score = [&](int query, float product) {
    const bool seen = position <= problem.first_query + query;
    return seen ? problem.scale * product : -std::numeric_limits<float>::infinity();
  };
  if (problem.queries % 2 == 0 && column < problem.queries) {
    *reinterpret_cast<float2*>(row + column) = {score(column, first), score(column + 1, second)};
  } else {
    if (column < problem.queries) row[column] = score(column, first);
    if (column + 1 < problem.queries) row[column + 1] = score(column + 1, second);
  }
}

template <class T, int head_dim>
__global__ void __launch_bounds__(ScoreShape::threads) score_kernel(const ScoreProblem<T> problem) {
  using Shape = ScoreShape;
  extern __shared__ __align__(128) char shared[];
  const ScoreMemory<head_dim> memory(shared_address(shared));
  const int kv_head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const std::int64_t first = std::int64_t{blockIdx.x} * Shape::own_rows, rows = problem.k_positions.count;
  const auto count = [](std::int64_t rest, int most) { return static_cast<int>(rest < most ? rest : most); };
  memory.k.template load<Shape::threads>(problem.k.at(batch, kv_head, first), problem.k.row_stride,
                                         count(rows - first, Shape::own_rows));

  const int own = static_cast<int>(threadIdx.x) / 32 * 16 * Shape::blocks;  // the warp's first row
  ScoreRow mine[Shape::blocks][2];
#pragma unroll
  for (int m = 0; m < Shape::blocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first + own + row_of(m, 2 * half);
      mine[m][half] = {row, row < rows ? problem.k_positions(row) : 0, row < rows};
    }
  }
  const int group = problem.heads / problem.kv_heads;
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    float* const scores =
        problem.scores + (std::int64_t{batch} * problem.heads + head) * rows * problem.queries;
    for (int begin = 0; begin < problem.queries; begin += Shape::inner_rows) {
      memory.q.template load<Shape::threads>(problem.q.at(batch, head, begin), problem.q.row_stride,
                                             count(problem.queries - begin, Shape::inner_rows));
      wait_for_copies();
      __syncthreads();
      Accumulator<Shape::blocks, Shape::inner_rows / 8> product;  // (keys, queries)
      multiply_rows<T>(product, memory.k, own, memory.q);
      __syncthreads();  // the next queries take the place of these
#pragma unroll
      for (int m = 0; m < Shape::blocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const ScoreRow& to = mine[m][half];
          if (!to.exists) continue;
          float* const row = scores + to.row * problem.queries;
#pragma unroll
          for (int n = 0; n < Shape::inner_rows / 8; ++n) {
            const float(&pair)[4] = product.value[m][n];
            store_scores(problem, row, to.position, begin + column_of(n, 0), pair[2 * half],
                         pair[2 * half + 1]);
          }
        }
      }
    }
  }
}

}  // namespace annulus::attention::mma
