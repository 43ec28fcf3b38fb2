#pragma once

#include "attention/kernels/key_tiles.hpp"
#include "attention/kernels/mma/products.hpp"

namespace annulus::attention::mma {

/// ScoreOperands in plain pointers; scores (batch, heads, keys, queries of a group), maxima (batch, heads,
/// groups, queries).
template <class T>
struct ScoreProblem {
  Rows<const T> q, k;
  PositionMap k_positions;
  std::int64_t first_query = 0;
  float scale = 1.0f;
  int batch = 0, heads = 0, kv_heads = 0;
  int queries = 0;  ///< of a group
  int groups = 1;
  float *scores = nullptr, *maxima = nullptr;
  int head_dim = 0;
  const std::int64_t *q_listed = nullptr, *q_first = nullptr;  ///< as in ScoreOperands
  KeyTiles tiles = {};                                         ///< all of them

  /// Position of query `query` of a group.
  __device__ __forceinline__ std::int64_t q_position(int group, int query) const {
    if (q_listed == nullptr) return first_query + query;
    return query < queries ? q_listed[group * queries + query] : -1;
  }
  struct Positions {
    std::int64_t first, last;
  };
  /// Those of the keys that it sees.
  __device__ __forceinline__ Positions seen(int sequence, int group, int query) const {
    const std::int64_t last = q_position(group, query);
    if (q_first == nullptr || last < 0) return {0, last};
    return {q_first[(std::int64_t{sequence} * groups + group) * queries + query], last};
  }
  __device__ __forceinline__ KeyTile tile(unsigned i) const { return tiles.tile(i, k_positions.count); }
};

/// A block owns 128 keys of a kv head, a warp 32 of them, and multiplies them with `most_queries` queries of
/// each query head, 64 at a time: keys are read seldom, and most of the traffic is the scores that are
/// written.
struct ScoreShape {
  static constexpr int warps = 4, threads = 32 * warps, blocks = 2, own_rows = 16 * blocks * warps;
  static constexpr int inner_rows = 64, most_queries = 2 * inner_rows;
  static_assert(own_rows == KeyTile::most_rows);
};

template <int head_dim>
struct ScoreTiles {
  Tile<ScoreShape::own_rows, head_dim> k;
  Tile<ScoreShape::inner_rows, head_dim> q;
  float* maxima;  ///< (warps, inner_rows)
  static constexpr int bytes_of_tiles = decltype(k)::bytes + decltype(q)::bytes,
                       bytes = bytes_of_tiles + ScoreShape::warps * ScoreShape::inner_rows * 4;

  __device__ explicit ScoreTiles(char* memory)
      : k{shared_address(memory)},
        q{shared_address(memory) + decltype(k)::bytes},
        maxima(reinterpret_cast<float*>(memory + bytes_of_tiles)) {}
};

/// A row of scores and the position of its key.
struct ScoreRow {
  std::int64_t row = 0, position = 0;
  bool exists = false;
};

/// *maximum becomes `value` where that is larger.
__device__ __forceinline__ void raise(float* maximum, float value) {
  value += 0.0f;  // −0 becomes 0, whose bits are those of a positive number
  if (!(value > *static_cast<const volatile float*>(maximum))) return;  // nearly always
  // Bits of positive numbers are ordered like the numbers, those of negative ones the other way round.
  if (value >= 0.0f) {
    atomicMax(reinterpret_cast<int*>(maximum), __float_as_int(value));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(maximum), __float_as_uint(value));
  }
}

/// Scores (column, column + 1) of a row of `queries`.
__device__ __forceinline__ void store_scores(float* row, int queries, int column, float first, float second) {
  if (queries % 2 == 0 && column < queries) {
    *reinterpret_cast<float2*>(row + column) = {first, second};
  } else {
    if (column < queries) row[column] = first;
    if (column + 1 < queries) row[column + 1] = second;
  }
}

/// The keys of a block, and the inner rows of queries that it multiplies them with.
struct ScoreBlock {
  KeyTile tile;
  std::int64_t first_key, last_key;  ///< positions
  int begin;                         ///< query of the tile's group

  /// Whether all rows of both exist and all queries see all keys, as nearly always: nothing is to be masked.
  template <class T>
  __device__ __forceinline__ bool is_whole(const ScoreProblem<T>& problem, int sequence) const {
    const int end = begin + ScoreShape::inner_rows;
    return tile.rows == ScoreShape::own_rows && end <= problem.queries && problem.queries % 2 == 0 &&
           last_key <= problem.q_position(tile.group, begin) &&
           problem.seen(sequence, tile.group, end - 1).first <= first_key;
  }
};

/// Products become scores: −∞ for queries that do not see the key.
template <class T, class Product>
__device__ __forceinline__ void mask_scores(const ScoreProblem<T>& problem,
                                            const ScoreRow (&rows)[ScoreShape::blocks][2], int sequence,
                                            const ScoreBlock& block, Product& product) {
#pragma unroll
  for (int n = 0; n < ScoreShape::inner_rows / 8; ++n) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const auto [first, last] = problem.seen(sequence, block.tile.group, block.begin + column_of(n, column));
#pragma unroll
      for (int m = 0; m < ScoreShape::blocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& value = product.value[m][n][2 * half + column];
          const ScoreRow& row = rows[m][half];
          const bool seen = row.exists && first <= row.position && row.position <= last;
          value = seen ? problem.scale * value : -std::numeric_limits<float>::infinity();
        }
      }
    }
  }
}

/// maxima (inner_rows): of the warp's keys.
template <class Product>
__device__ __forceinline__ void store_maxima(const Product& scores, float* maxima) {
#pragma unroll
  for (int n = 0; n < ScoreShape::inner_rows / 8; ++n) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      float highest = -std::numeric_limits<float>::infinity();
#pragma unroll
      for (int m = 0; m < ScoreShape::blocks; ++m)
        highest = fmaxf(highest, fmaxf(scores.value[m][n][column], scores.value[m][n][2 + column]));
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2)
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, lanes));
      if (threadIdx.x % 32 < 4) maxima[column_of(n, column)] = highest;
    }
  }
}

/// The rows of keys that a thread has of a tile, of which the warp's begin at its row `own`.
template <class T>
__device__ __forceinline__ void find_rows(const ScoreProblem<T>& problem, const KeyTile& tile, int own,
                                          ScoreRow (&mine)[ScoreShape::blocks][2]) {
#pragma unroll
  for (int m = 0; m < ScoreShape::blocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = own + row_of(m, 2 * half);
      const std::int64_t row = tile.first + in_tile;
      const bool exists = in_tile < tile.rows;
      mine[m][half] = {row, exists ? problem.k_positions(row) : 0, exists};
    }
  }
}

/// Writes the scores of a block's keys and queries, and raises the queries' maxima. `shared`: (warps,
/// inner_rows). The threads meet once.
template <class T, class Product>
__device__ __forceinline__ void finish_scores(const ScoreProblem<T>& problem, int batch, int head,
                                              const ScoreRow (&mine)[ScoreShape::blocks][2],
                                              const ScoreBlock& block, Product& product, float* shared) {
  using Shape = ScoreShape;
  const std::int64_t batch_head = std::int64_t{batch} * problem.heads + head;
  const bool whole = block.is_whole(problem, batch);
  if (whole) {
    product.scale(problem.scale);
  } else {
    mask_scores(problem, mine, batch, block, product);
  }
  store_maxima(product, shared + threadIdx.x / 32 * Shape::inner_rows);
  __syncthreads();  // the next queries take the place of these
  const int query = static_cast<int>(threadIdx.x), begin = block.begin;
  if (query < Shape::inner_rows && begin + query < problem.queries) {
    float highest = shared[query];
    for (int warp = 1; warp < Shape::warps; ++warp)
      highest = fmaxf(highest, shared[warp * Shape::inner_rows + query]);
    raise(problem.maxima + (batch_head * problem.groups + block.tile.group) * problem.queries + begin + query,
          highest);
  }
  float* const scores = problem.scores + batch_head * problem.k_positions.count * problem.queries;
#pragma unroll
  for (int m = 0; m < Shape::blocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ScoreRow& to = mine[m][half];
      if (!to.exists) continue;
      float* const row = scores + to.row * problem.queries;
      if (whole) {  // without a branch for each pair
#pragma unroll
        for (int n = 0; n < Shape::inner_rows / 8; ++n) {
          const float(&pair)[4] = product.value[m][n];
          *reinterpret_cast<float2*>(row + begin + column_of(n, 0)) = {pair[2 * half], pair[2 * half + 1]};
        }
      } else {
#pragma unroll
        for (int n = 0; n < Shape::inner_rows / 8; ++n) {
          const float(&pair)[4] = product.value[m][n];
          store_scores(row, problem.queries, begin + column_of(n, 0), pair[2 * half], pair[2 * half + 1]);
        }
      }
    }
  }
}

/// Rows of `rest` that a tile of `most` takes.
__device__ __forceinline__ int rows_in_tile(std::int64_t rest, int most) {
  return static_cast<int>(rest < most ? rest : most);
}

template <class T, int head_dim, bool clipped>
__global__ void __launch_bounds__(ScoreShape::threads, 3) score_kernel(const ScoreProblem<T> problem) {
  using Shape = ScoreShape;
  extern __shared__ __align__(128) char shared[];
  const ScoreTiles<head_dim> memory(shared);
  const int kv_head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int columns = clipped ? problem.head_dim : head_dim;
  const auto tiles = static_cast<unsigned>(problem.tiles.count);
  const KeyTile tile = problem.tile(blockIdx.x % tiles);
  const int first = static_cast<int>(blockIdx.x / tiles) * Shape::most_queries,
            end = min(first + Shape::most_queries, problem.queries);
  memory.k.template load<Shape::threads>(problem.k.at(batch, kv_head, tile.first), problem.k.row_stride,
                                         tile.rows, columns);

  const int own = static_cast<int>(threadIdx.x) / 32 * 16 * Shape::blocks;  // the warp's first row
  ScoreRow mine[Shape::blocks][2];
  find_rows(problem, tile, own, mine);
  const std::int64_t first_key = problem.k_positions(tile.first),
                     last_key = problem.k_positions(tile.first + tile.rows - 1);
  const int heads = problem.heads / problem.kv_heads, first_query = tile.group * problem.queries;
  for (int head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
    for (int begin = first; begin < end; begin += Shape::inner_rows) {
      memory.q.template load<Shape::threads>(
          problem.q.at(batch, head, first_query + begin), problem.q.row_stride,
          rows_in_tile(problem.queries - begin, Shape::inner_rows), columns);
      wait_for_copies();
      __syncthreads();
      Accumulator<Shape::blocks, Shape::inner_rows / 8> product;  // (keys, queries)
      multiply_rows<T>(product, memory.k, own, memory.q);
      finish_scores(problem, batch, head, mine, {tile, first_key, last_key, begin}, product, memory.maxima);
    }
  }
}

/// Columns of a slice of longer rows, and two slices of both tiles in shared memory.
struct DeepScoreTiles {
  static constexpr int columns = 64;
  using Keys = Tile<ScoreShape::own_rows, columns>;
  using Queries = Tile<ScoreShape::inner_rows, columns>;
  std::uint32_t tiles;  ///< address of both slices of keys, then of queries
  float* maxima;        ///< (warps, inner_rows)
  static constexpr int bytes_of_tiles = 2 * (Keys::bytes + Queries::bytes),
                       bytes = bytes_of_tiles + ScoreShape::warps * ScoreShape::inner_rows * 4;

  __device__ explicit DeepScoreTiles(char* memory)
      : tiles(shared_address(memory)), maxima(reinterpret_cast<float*>(memory + bytes_of_tiles)) {}
  __device__ __forceinline__ Keys k(int stage) const { return {tiles + stage * Keys::bytes}; }
  __device__ __forceinline__ Queries q(int stage) const {
    return {tiles + 2 * Keys::bytes + stage * Queries::bytes};
  }
};

/// Rows of any number of columns, slice by slice, in their order: the next slice comes while this one is
/// multiplied. A block has 128 keys and 64 queries of one head.
template <class T>
__global__ void __launch_bounds__(ScoreShape::threads) deep_score_kernel(const ScoreProblem<T> problem) {
  using Shape = ScoreShape;
  extern __shared__ __align__(128) char shared[];
  const DeepScoreTiles memory(shared);
  const int batch = static_cast<int>(blockIdx.y) / problem.heads,
            head = static_cast<int>(blockIdx.y) % problem.heads,
            kv_head = head / (problem.heads / problem.kv_heads),
            begin = static_cast<int>(blockIdx.z) * Shape::inner_rows;
  const KeyTile tile = problem.tile(blockIdx.x);
  const std::int64_t first = tile.first;
  const int keys = tile.rows, first_query = tile.group * problem.queries,
            queries = rows_in_tile(problem.queries - begin, Shape::inner_rows);
  const auto load = [&](int column, int stage) {
    const int columns = problem.head_dim - column;
    memory.k(stage).template load<Shape::threads>(problem.k.at(batch, kv_head, first) + column,
                                                  problem.k.row_stride, keys, columns);
    memory.q(stage).template load<Shape::threads>(problem.q.at(batch, head, first_query + begin) + column,
                                                  problem.q.row_stride, queries, columns);
  };
  const int own = static_cast<int>(threadIdx.x) / 32 * 16 * Shape::blocks;  // the warp's first row
  ScoreRow mine[Shape::blocks][2];
  find_rows(problem, tile, own, mine);
  Accumulator<Shape::blocks, Shape::inner_rows / 8> product;  // (keys, queries)
  product.clear();
  // Positions of queries increase: where the last one is before all keys, nothing is to be multiplied.
  const std::int64_t first_key = problem.k_positions(first), last_key = problem.k_positions(first + keys - 1);
  if (first_key <= problem.q_position(tile.group, begin + queries - 1)) {
    load(0, 0);
    int stage = 0;
    for (int column = 0; column < problem.head_dim; column += DeepScoreTiles::columns) {
      wait_for_copies();
      __syncthreads();  // the slice is there, and nobody reads the one before
      if (column + DeepScoreTiles::columns < problem.head_dim)
        load(column + DeepScoreTiles::columns, 1 - stage);
      add_rows<T>(product, memory.k(stage), own, memory.q(stage));
      stage = 1 - stage;
    }
  }
  finish_scores(problem, batch, head, mine, {tile, first_key, last_key, begin}, product, memory.maxima);
}

}  // namespace annulus::attention::mma
