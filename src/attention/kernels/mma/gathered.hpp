#pragma once

#include "attention/kernels/mma/backward.hpp"
#include "attention/kernels/mma/forward.hpp"

/// Attention where each query has blocks of its own (MaskRule::query_blocks): the queries that have a block
/// of keys are gathered into tiles, so that the products are those of selected pairs and not of the union of
/// what neighbouring queries selected.
namespace annulus::attention::mma {

/// Queries side by side that are gathered from: of a twentieth of them a tile of 64 or 128 is nearly full.
inline constexpr int most_gathered_from = 2048;

struct GatherMemory {
  std::int32_t positions[most_gathered_from];
  std::uint16_t rows[most_gathered_from];  ///< rows that have been taken, counted from the first one
  int counts[2][4];                        ///< of the warps
  int limits[4];                           ///< of a BlockWalk
};

/// Some queries side by side, and those of them that have been taken, in their order. All threads of a block,
/// 128, call the functions together.
class GatheredQueries {
 public:
  __device__ explicit GatheredQueries(GatherMemory& memory) : memory_(memory) {}

  /// Turns to rows [first, first + rows) of `map`.
  __device__ void turn_to(const PositionMap& map, int first, int rows) {
    first_ = first;
    rows_ = rows;
    __syncthreads();  // the positions before have been used
    for (int i = static_cast<int>(threadIdx.x); i < rows; i += threads)
      memory_.positions[i] = static_cast<std::int32_t>(map(first + i));
    __syncthreads();
  }

  /// Takes the queries at positions `where` that have one of the block columns `first` … `last` by `rule`.
  /// Returns how many there are.
  __device__ int take(const MaskRule& rule, std::int64_t first, std::int64_t last, const KeyRange& where) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const std::uint32_t before = (1u << threadIdx.x % 32) - 1;
    int count = 0, stage = 0;
    __syncthreads();  // the rows before have been used
    for (int begin = 0; begin < rows_; begin += threads, stage ^= 1) {
      const int row = begin + static_cast<int>(threadIdx.x);
      bool has = false;
      if (row < rows_) {
        const std::int64_t position = memory_.positions[row];
        for (std::int64_t column = first; column <= last && !has; ++column)
          has = rule.query_has_block(position, column);
        has = has && where.begin <= position && position < where.end;
      }
      const std::uint32_t those = __ballot_sync(0xffffffffu, has);
      if (threadIdx.x % 32 == 0) memory_.counts[stage][warp] = __popc(those);
      __syncthreads();
      int to = count + __popc(those & before);
      for (int i = 0; i < threads / 32; ++i) {
        const int of_warp = memory_.counts[stage][i];
        if (i < warp) to += of_warp;
        count += of_warp;
      }
      if (has) memory_.rows[to] = static_cast<std::uint16_t>(row);
    }
    __syncthreads();
    return count;
  }

  /// The row, and the position, of the i-th query that has been taken.
  __device__ __forceinline__ int row(int i) const { return first_ + memory_.rows[i]; }
  __device__ __forceinline__ std::int64_t position(int i) const { return memory_.positions[memory_.rows[i]]; }

 private:
  static constexpr int threads = 128;
  GatherMemory& memory_;
  int first_ = 0, rows_ = 0;
};

/// The tiles of keys of one block, for queries that all have it: what is left of the mask are its band and
/// its documents. As TileWalk.
class BlockWalk {
 public:
  /// The queries are taken[first … first + rows). `keys`: rows of the block in `map`.
  __device__ BlockWalk(const MaskRule& rule, const GatheredQueries& taken, int first, int rows,
                       const PositionMap& map, RowRange keys, GatherMemory& memory) {
    const int row = static_cast<int>(threadIdx.x);
    const auto limit = [&](std::int64_t position) {
      const std::int64_t at = map.rows_below(position);
      return static_cast<int>(at < keys.begin ? keys.begin : at > keys.end ? keys.end : at);
    };
    if (row < rows) {
      const std::int64_t position = taken.position(first + row);
      const KeyRange reach = rule.key_range(position, rule.left, rule.right);
      low_ = limit(reach.begin);
      high_ = limit(reach.end);
    }
    __syncthreads();  // the limits before have been used
    if (row == 0) {
      memory.limits[0] = low_;
      memory.limits[1] = high_;
    }
    if (row == rows - 1) {
      memory.limits[2] = low_;
      memory.limits[3] = high_;
    }
    __syncthreads();
    // Both ends of what a query sees grow with its position.
    const int skipped = (memory.limits[0] - static_cast<int>(keys.begin)) / inner_rows * inner_rows;
    begin_ = static_cast<int>(keys.begin) + skipped;
    first_high_ = memory.limits[1];
    last_low_ = memory.limits[2];
    end_ = memory.limits[3];
  }

  __device__ int begin() const { return begin_; }

  __device__ WalkTile next(int first) const {
    if (first >= end_) return {end_, 0, false};
    const int rows = min(inner_rows, end_ - first);
    return {first, rows, last_low_ > first || first_high_ < first + rows || rows < inner_rows};
  }

  /// Writes the words of a partial tile for the threads' queries; the caller's barrier makes them visible.
  template <int own_rows>
  __device__ void write_words(const WalkTile& tile, std::uint64_t (&words)[own_rows]) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= own_rows) return;
    const int low = max(low_ - tile.first, 0), high = min(high_ - tile.first, inner_rows);
    words[row] = low < high ? (~std::uint64_t{0} >> (inner_rows - (high - low))) << low : 0;
  }

 private:
  int low_ = 0, high_ = 0, begin_, first_high_, last_low_, end_;
};

/// Calls action(begin, rows, walk, the walk's first tile) for tiles of those of the queries [first, first +
/// queries) that have a block of keys, taken[begin … begin + rows), block after block in the order of
/// positions.
template <int own_rows, class T, class Action>
__device__ __forceinline__ void for_each_gathered_tile(const Input<T>& in, const MaskRule& rule, int first,
                                                       int queries, GatheredQueries& taken,
                                                       GatherMemory& memory, const Action& action) {
  const PositionMap& map = in.kv_positions;
  taken.turn_to(in.q_positions, first, queries);
  // What any of the queries sees by band and documents.
  const std::int64_t last = in.q_positions(first + queries - 1),
                     end = map.rows_below(rule.key_range(last, rule.left, rule.right).end);
  RowRange keys{map.rows_below(rule.key_range(in.q_positions(first), rule.left, rule.right).begin), 0};
  for (; keys.begin < end; keys.begin = keys.end) {
    const std::int64_t column = map(keys.begin) / rule.block_size,
                       next = map.rows_below((column + 1) * rule.block_size);
    keys.end = next < end ? next : end;
    const int count = taken.take(rule, column, column, {0, rule.tokens, 1});
    for (int begin = 0; begin < count; begin += own_rows) {
      const int rows = min(own_rows, count - begin);
      const BlockWalk walk(rule, taken, begin, rows, map, keys, memory);
      const WalkTile tile = walk.next(walk.begin());
      if (tile.rows > 0) action(begin, rows, walk, tile);
    }
  }
}

/// A block of threads owns `queries_of_block` queries of a head, and merges each block of keys into the
/// running result of those that have it.
template <class T, int head_dim>
__global__ void __launch_bounds__(ForwardShape::threads, 2)
    gathered_forward_kernel(const __grid_constant__ ForwardProblem<T> problem, int queries_of_block) {
  using Shape = ForwardShape;
  extern __shared__ __align__(128) unsigned char dynamic[];
  __shared__ std::uint64_t allowed[2][Shape::own_rows];
  __shared__ GatherMemory gather_memory;
  const ForwardTiles<head_dim> memory(shared_address(dynamic));
  const Input<T>& in = problem.in;
  // Causal: the longest first, so that no block ends late.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * queries_of_block;
  const int queries = min(queries_of_block, static_cast<int>(in.q_positions.count) - first);
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / (in.heads / in.kv_heads);
  const int warp_first = static_cast<int>(threadIdx.x / 32) * 16 * Shape::blocks;
  const MaskRule rule = in.mask.of_head(std::int64_t{batch} * in.heads + head);
  GatheredQueries taken(gather_memory);
  const auto add_tile = [&](int begin, int rows, const BlockWalk& walk, const WalkTile& tile) {
    const auto load = [&](const WalkTile& of, int stage) {
      memory.load_keys(in, batch, kv_head, of, head_dim, stage);
      if (of.partial) walk.write_words(of, allowed[stage]);
    };
    memory.q.template load_listed<Shape::threads>(
        in.q.at(batch, head, 0), in.q.row_stride, [&](int i) { return taken.row(begin + i); }, rows,
        head_dim);
    load(tile, 0);
    WarpSoftmax<Shape::blocks> softmax;
    Accumulator<Shape::blocks, head_dim / 8> out;
    out.clear();
    attend_from<false, false>(in, memory, walk, tile, load, allowed, warp_first, softmax, out);
    merge_rows<false>(
        problem, batch, head, [&](int row) { return taken.row(begin + warp_first + row); }, rows - warp_first,
        head_dim, out, softmax);
    __syncthreads();  // the tiles have been used
  };
  for_each_gathered_tile<Shape::own_rows>(in, rule, first, queries, taken, gather_memory, add_tile);
}

/// Tiles of the queries that have one of the blocks of some keys, over all heads that read them.
class QueryTiles {
 public:
  struct QueryTile {
    int first, rows;  ///< among those taken; 0 rows: the end
    int head;
    bool partial;
  };

  /// The keys are rows [first, first + rows) of in.kv_positions.
  template <class T>
  __device__ QueryTiles(const Input<T>& in, int batch, int kv_head, int first, int rows, GatherMemory& memory)
      : taken_(memory),
        first_position_(in.kv_positions(first)),
        last_position_(in.kv_positions(first + rows - 1)),
        group_(in.heads / in.kv_heads),
        first_head_(kv_head * group_),
        batch_head_(std::int64_t{batch} * in.heads + first_head_) {
    const MaskRule& rule = in.mask;
    first_range_ = rule.key_range(first_position_, rule.right, rule.left);
    last_range_ = rule.key_range(last_position_, rule.right, rule.left);
    next_queries_ = static_cast<int>(in.q_positions.rows_below(first_range_.begin));
    queries_end_ = static_cast<int>(in.q_positions.rows_below(last_range_.end));
    const int row = static_cast<int>(threadIdx.x);
    if (row < rows) {
      position_ = in.kv_positions(first + row);
      const KeyRange own = rule.key_range(position_, rule.right, rule.left);
      begin_ = own.begin;
      end_ = own.end;
    }
  }

  template <class T>
  __device__ QueryTile next(const Input<T>& in) {
    at_ += inner_rows;
    const std::int64_t first_column = first_position_ / in.mask.block_size,
                       last_column = last_position_ / in.mask.block_size;
    while (at_ >= count_) {
      if (++head_ >= group_) {
        if (next_queries_ >= queries_end_) return {0, 0, 0, false};
        const int queries = min(most_gathered_from, queries_end_ - next_queries_);
        taken_.turn_to(in.q_positions, next_queries_, queries);
        next_queries_ += queries;
        head_ = 0;
      }
      count_ = taken_.take(in.mask.of_head(batch_head_ + head_), first_column, last_column,
                           {first_range_.begin, last_range_.end, 1});
      at_ = 0;
    }
    const int rows = min(inner_rows, count_ - at_);
    // Both ends of what a key is seen by grow with its position.
    const bool all_see = last_range_.begin <= taken_.position(at_) &&
                         taken_.position(at_ + rows - 1) < first_range_.end && first_column == last_column;
    return {at_, rows, first_head_ + head_, !all_see || rows < inner_rows};
  }

  __device__ const GatheredQueries& taken() const { return taken_; }

  /// Writes the words of a partial tile for the threads' keys; the caller's barrier makes them visible.
  template <class T, int own_rows>
  __device__ void write_words(const Input<T>& in, const QueryTile& tile,
                              std::uint64_t (&words)[own_rows]) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= own_rows) return;
    const int low = queries_below(tile, begin_), high = queries_below(tile, end_);
    std::uint64_t word = low < high ? (~std::uint64_t{0} >> (inner_rows - (high - low))) << low : 0;
    if (first_position_ / in.mask.block_size != last_position_ / in.mask.block_size) {
      const MaskRule rule = in.mask.of_head(batch_head_ + head_);
      for (int i = low; i < high; ++i) {
        if (!rule.query_has_block(taken_.position(tile.first + i), position_ / rule.block_size))
          word &= ~(std::uint64_t{1} << i);
      }
    }
    words[row] = word;
  }

 private:
  __device__ int queries_below(const QueryTile& tile, std::int64_t position) const {
    int low = 0, high = tile.rows;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (taken_.position(tile.first + middle) < position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  GatheredQueries taken_;
  std::int64_t first_position_, last_position_, position_ = 0;
  std::int64_t begin_ = 0, end_ = 0;  ///< positions of queries that see the thread's key
  KeyRange first_range_, last_range_;
  int group_, first_head_, next_queries_, queries_end_;
  std::int64_t batch_head_;
  int head_ = 1 << 20, at_ = 0, count_ = 0;
};

/// dK and dV: a block of threads owns 64 keys of a kv head, as key_gradient_kernel.
template <class T, int head_dim>
__global__ void __launch_bounds__(BackwardShape::threads, 2)
    gathered_key_gradient_kernel(const __grid_constant__ BackwardProblem<T> problem) {
  using Shape = BackwardShape;
  extern __shared__ __align__(128) unsigned char dynamic[];
  __shared__ std::uint64_t allowed[2][Shape::own_rows];
  __shared__ float statistics[2][2][inner_rows];  // LSE and d, [stage]
  __shared__ GatherMemory gather_memory;
  const BackwardTiles<head_dim> memory(shared_address(dynamic));
  const Input<T>& in = problem.in;
  const int first = static_cast<int>(blockIdx.x) * Shape::own_rows;  // causal: early keys have most queries
  const int kv_head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int rows = min(Shape::own_rows, static_cast<int>(in.kv_positions.count) - first);
  QueryTiles tiles(in, batch, kv_head, first, rows, gather_memory);
  using Tile = QueryTiles::QueryTile;

  const auto load = [&](const Tile& tile, int stage) {
    const auto row_at = [&](int i) { return tiles.taken().row(tile.first + i); };
    memory.inner[stage][0].template load_listed<Shape::threads>(in.q.at(batch, tile.head, 0), in.q.row_stride,
                                                                row_at, tile.rows, head_dim);
    memory.inner[stage][1].template load_listed<Shape::threads>(
        problem.d_out.at(batch, tile.head, 0), problem.d_out.row_stride, row_at, tile.rows, head_dim);
    const int row = static_cast<int>(threadIdx.x) % inner_rows,
              which = static_cast<int>(threadIdx.x) / inner_rows;
    const bool valid = row < tile.rows;
    copy_4_bytes(shared_address(&statistics[stage][which][row]),
                 (which == 0 ? problem.lse : problem.d).at(batch, tile.head, valid ? row_at(row) : 0), valid);
    if (tile.partial) tiles.write_words(in, tile, allowed[stage]);
  };

  Tile tile = tiles.next(in);
  if (tile.rows == 0) return;
  memory.own[0].template load<Shape::threads>(in.k.at(batch, kv_head, first), in.k.row_stride, rows,
                                              head_dim);
  memory.own[1].template load<Shape::threads>(in.v.at(batch, kv_head, first), in.v.row_stride, rows,
                                              head_dim);
  load(tile, 0);

  const int warp_first = static_cast<int>(threadIdx.x / 32) * 16;
  const ScorePowers<false> powers(in);
  Accumulator<1, head_dim / 8> dk, dv;
  dk.clear();
  dv.clear();
  for (int stage = 0; tile.rows > 0; stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // this stage has come, the other has been used
    const Tile next = tiles.next(in);
    if (next.rows > 0) load(next, stage ^ 1);
    add_queries<T>(memory, stage, warp_first, statistics[stage],
                   tile.partial ? allowed[stage] + warp_first : nullptr, powers, dk, dv);
    tile = next;
  }
  const auto row_at = [&](int row) { return first + warp_first + row; };
  add_rows(problem.dk, batch, kv_head, row_at, rows - warp_first, head_dim, dk, in.scale);
  add_rows(problem.dv, batch, kv_head, row_at, rows - warp_first, head_dim, dv, 1.0f);
}

/// dQ: a block of threads owns `queries_of_block` queries of a head, as gathered_forward_kernel.
template <class T, int head_dim>
__global__ void __launch_bounds__(BackwardShape::threads, 2)
    gathered_query_gradient_kernel(const __grid_constant__ BackwardProblem<T> problem, int queries_of_block) {
  using Shape = BackwardShape;
  extern __shared__ __align__(128) unsigned char dynamic[];
  __shared__ std::uint64_t allowed[2][Shape::own_rows];
  __shared__ GatherMemory gather_memory;
  const BackwardTiles<head_dim> memory(shared_address(dynamic));
  const Input<T>& in = problem.in;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * queries_of_block;  // causal: longest first
  const int queries = min(queries_of_block, static_cast<int>(in.q_positions.count) - first);
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / (in.heads / in.kv_heads);
  const int warp_first = static_cast<int>(threadIdx.x / 32) * 16;
  const MaskRule rule = in.mask.of_head(std::int64_t{batch} * in.heads + head);
  const ScorePowers<false> powers(in);
  GatheredQueries taken(gather_memory);
  const auto add_tile = [&](int begin, int rows, const BlockWalk& walk, const WalkTile& tile) {
    const auto load = [&](const WalkTile& of, int stage) {
      memory.load_keys(in, batch, kv_head, of, head_dim, stage);
      if (of.partial) walk.write_words(of, allowed[stage]);
    };
    const auto row_at = [&](int i) { return taken.row(begin + i); };
    memory.own[0].template load_listed<Shape::threads>(in.q.at(batch, head, 0), in.q.row_stride, row_at, rows,
                                                       head_dim);
    memory.own[1].template load_listed<Shape::threads>(problem.d_out.at(batch, head, 0),
                                                       problem.d_out.row_stride, row_at, rows, head_dim);
    load(tile, 0);
    const auto row_of_warp = [&](int row) { return taken.row(begin + warp_first + row); };
    QueryStatistics statistics[2];
    load_statistics(problem, batch, head, row_of_warp, rows - warp_first, statistics);
    Accumulator<1, head_dim / 8> dq;
    dq.clear();
    add_keys_from<T>(memory, walk, tile, load, allowed, warp_first, statistics, powers, dq);
    add_rows(problem.dq, batch, head, row_of_warp, rows - warp_first, head_dim, dq, in.scale);
    __syncthreads();  // the tiles have been used
  };
  for_each_gathered_tile<Shape::own_rows>(in, rule, first, queries, taken, gather_memory, add_tile);
}

}  // namespace annulus::attention::mma
