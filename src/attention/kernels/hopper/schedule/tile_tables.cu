// The kernels that turn positions and a mask into the tables of a tile loop.

#include "attention/kernels/hopper/schedule/tile_tables.hpp"

#include <algorithm>

namespace annulus::attention::hopper {
namespace {

/// One side's view of the other.
struct TileTablesProblem {
  MaskRule mask;
  TileSides sides;
  TileTablesSize size;
  GradientSums gradients;
  TableMemory out;
};

/// `table`: of a block list, where keys are listed.
__device__ RowSpan span_of(const TileTablesProblem& p, int table, int own_class, std::int64_t row) {
  const TileSides& sides = p.sides;
  const DilationClasses& classes = sides.classes;
  if (!classes.some) return {0, 0};
  const std::int64_t head = table * p.size.heads_of_list;
  const std::int64_t position = sides.own_of(head)(classes.row(row, own_class));
  if (position >= p.mask.tokens) {  // no key. Spans may not go back: it sees nothing behind all others
    const int end = static_cast<int>(sides.other.count);
    return {end, end};
  }
  const KeyRange reach = sides.own_is_query ? p.mask.key_range(position, p.mask.left, p.mask.right)
                                            : p.mask.key_range(position, p.mask.right, p.mask.left);
  const int other_class = sides.other_class(own_class);
  const KeyPositions other = sides.other_of(head);
  const auto below = [&](std::int64_t end) {
    return static_cast<int>(classes.rows(other.rows_below(end), other_class));
  };
  return {below(reach.begin), below(reach.end)};
}

/// Sets the dQ semaphores of a tile of the other side to the first own tile that adds to it, or −1; by one
/// thread. `table`: the other side's class, or the block list, of which each head has semaphores of its own.
__device__ void init_dq_semaphores(const TileTablesProblem& p, int table, int other, int first_writer) {
  const std::int64_t tile = std::int64_t{table} * p.size.other_tiles + other;
  p.out.first_writers[tile] = first_writer;
  const bool lists = p.size.heads_of_list > 0;  // then one class
  const std::int64_t heads = p.size.heads_with_semaphores == 0 ? 0
                             : lists                           ? p.size.heads_of_list
                                                               : p.size.heads_with_semaphores;
  const std::int64_t first = lists ? table * heads * p.size.other_tiles + other : tile;
  for (std::int64_t head = 0; head < heads; ++head)
    p.out.dq_semaphores[first + head * p.size.classes * p.size.other_tiles] = first_writer;
}

/// Spans, and the loops that they make: one warp for each own tile.
__global__ void span_tables_kernel(const __grid_constant__ TileTablesProblem p) {
  const TileSides& sides = p.sides;
  const DilationClasses& classes = sides.classes;
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  if (thread == 0) *p.out.tile_counter = 0;
  for (std::int64_t i = thread; i < p.size.spans(); i += threads) {
    const int table = static_cast<int>(i / p.size.own_rows), own_class = p.size.listed_keys ? 0 : table;
    const std::int64_t row = i % p.size.own_rows;
    if (row >= classes.rows(sides.own.count, own_class)) continue;
    p.out.spans[i] = span_of(p, p.size.listed_keys ? table : 0, own_class, row);
    if (p.size.lists() && table == 0) {
      const std::int64_t block = p.mask.block_size;
      p.out.bit_rows[row] = static_cast<int>(
          p.size.bits_of_own_rows ? row : sides.own(row) / block - sides.own.front() / block);
    }
  }
  if (p.size.lists()) return;  // the other kernels make the loops

  const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int tiles = static_cast<int>(p.size.own_tiles), others = static_cast<int>(p.size.other_tiles);
  if (warp >= p.size.classes * tiles) return;
  const int own_class = warp / tiles, tile = warp % tiles, other_class = sides.other_class(own_class);
  const std::int64_t rows = classes.rows(sides.own.count, own_class);
  const int tiles_with_rows = static_cast<int>(ceil_divide(rows, std::int64_t{sides.own_tile}));
  const std::int64_t first = std::int64_t{tile} * sides.own_tile;
  const std::int64_t last = min(first + sides.own_tile, rows) - 1;
  const bool gradients = p.gradients != GradientSums::none;
  if (tile >= tiles_with_rows) {
    if (lane == 0) p.out.loops[warp] = {0, 0, 0, 0};
    if (gradients && tile == 0) {
      for (int other = lane; other < others; other += 32) init_dq_semaphores(p, other_class, other, -1);
    }
    return;
  }
  // Divisions in 64 bits take long: a lane each for the first and the last row, and the row before.
  const std::int64_t wanted = lane == 1 ? last : lane == 2 ? max(first - 1, std::int64_t{0}) : first;
  const RowSpan lanes_span = span_of(p, 0, own_class, wanted);
  const auto span_from = [&](int from) {
    return RowSpan{__shfl_sync(0xffffffffu, lanes_span.begin, from),
                   __shfl_sync(0xffffffffu, lanes_span.end, from)};
  };
  const RowSpan first_span = span_from(0), last_span = span_from(1), before = span_from(2);
  const int begin = first_span.begin / sides.other_tile, end = ceil_divide(last_span.end, sides.other_tile);
  // Both ends of loops never decrease. This tile is the first visitor of what lies behind the end of the loop
  // before it.
  const bool is_last = tile == tiles_with_rows - 1;
  const int first_begin = tile == 0 ? 0 : ceil_divide(before.end, sides.other_tile);
  if (gradients) {
    for (int other = first_begin + lane; other < (is_last ? others : end); other += 32)
      init_dq_semaphores(p, other_class, other, begin <= other && other < end ? tile : -1);
  }
  if (lane != 0) return;
  // Rows only ever see more on the right and less on the left, so what the first and the last row see is seen
  // by all.
  const int whole_begin = ceil_divide(last_span.begin, sides.other_tile),
            whole_end = first_span.end / sides.other_tile;
  const bool first_sets = p.gradients == GradientSums::first_sets;
  TileLoop loop{static_cast<int>(warp * p.size.runs_of_tile()), 0, max(end - begin, 0), 0};
  for (int run_end = end; run_end > begin;) {
    const int other = run_end - 1;
    const bool whole = whole_begin <= other && other < whole_end;
    TileRun run{begin, run_end, TileRun::pack(!whole, false, first_sets && other >= first_begin), tile + 1};
    for (const int cut : {whole_begin, whole_end, first_sets ? first_begin : 0}) {
      if (cut < run_end) run.begin = max(run.begin, cut);
    }
    p.out.runs[loop.first_run + loop.runs++] = run;
    run_end = run.begin;
  }
  p.out.loops[warp] = loop;
}

/// Sets the bits of rows [begin, end) of the other side, or clears those of excluded blocks. Others do so in
/// the same words.
__device__ void mark_rows(const TileTablesProblem& p, std::int64_t table, std::int64_t bit_row,
                          std::int64_t begin, std::int64_t end) {
  if (p.size.bits.of_32_rows) {
    begin /= 32;
    end = ceil_divide(end, std::int64_t{32});
  }
  unsigned* const words = p.out.bits + table * p.size.words_of_list() + bit_row * p.size.bits.words_of_row;
  for (std::int64_t word = begin / 32; word * 32 < end; ++word) {
    const std::int64_t from = max(begin - word * 32, std::int64_t{0}),
                       to = min(end - word * 32, std::int64_t{32});
    const unsigned marked = (0xffffffffu >> (32 - (to - from))) << from;
    if (p.mask.blocks_excluded) {
      atomicAnd(words + word, ~marked);
    } else {
      atomicOr(words + word, marked);
    }
  }
}

/// What block lists say, in bits that say so far that nothing is listed: a warp for each block row of each
/// list.
__global__ void block_bits_kernel(const __grid_constant__ TileTablesProblem p) {
  const std::int64_t warp = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const std::int64_t block_rows = p.mask.block_rows(), table = warp / block_rows,
                     block_row = warp % block_rows;
  if (table >= p.size.block_lists) return;
  const MaskRule mask = p.mask.of_list(table);
  const TileSides& sides = p.sides;
  const std::int64_t head = table * p.size.heads_of_list;
  const KeyPositions own = sides.own_of(head), other = sides.other_of(head);
  struct Rows {
    std::int64_t begin, end;
  };
  const auto rows_of_block = [&](const KeyPositions& of, std::int64_t block) {
    return Rows{of.rows_below(block * mask.block_size), of.rows_below((block + 1) * mask.block_size)};
  };
  const Rows queries = rows_of_block(sides.own_is_query ? own : other, block_row);
  if (queries.begin == queries.end) return;
  const std::int64_t first_bit_row = sides.own_listed() ? 0 : sides.own.front() / mask.block_size;
  for (std::int64_t i = mask.block_row_starts[block_row] + threadIdx.x % 32;
       i < mask.block_row_starts[block_row + 1]; i += 32) {
    const std::int64_t block_column = mask.block_columns[i];
    const Rows keys = rows_of_block(sides.own_is_query ? other : own, block_column);
    if (keys.begin == keys.end) continue;
    if (sides.own_is_query) {
      mark_rows(p, table, block_row - first_bit_row, keys.begin, keys.end);
    } else if (sides.own_listed()) {
      for (std::int64_t key = keys.begin; key < keys.end; ++key)
        mark_rows(p, table, key, queries.begin, queries.end);
    } else {
      mark_rows(p, table, block_column - first_bit_row, queries.begin, queries.end);
    }
  }
}

/// Bits of queries with blocks of their own, where queries own: a thread for each word (x), query (y) and
/// list (z).
__global__ void own_query_bits_kernel(const __grid_constant__ TileTablesProblem p) {
  const PositionMap &own = p.sides.own, &other = p.sides.other;
  const std::int64_t rows_of_bit = p.size.bits.of_32_rows ? 32 : 1;
  __shared__ std::int64_t blocks_of_bits[32];  // −1 behind the last row
  if (threadIdx.x < 32) {
    const std::int64_t row = (std::int64_t{blockIdx.x} * 32 + threadIdx.x) * rows_of_bit;
    blocks_of_bits[threadIdx.x] = row < other.count ? other(row) / p.mask.block_size : -1;
  }
  __syncthreads();
  const std::int64_t row = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (row >= own.count) return;
  const MaskRule mask = p.mask.of_list(blockIdx.z);
  const std::uint32_t* const blocks = mask.query_blocks + own(row) * mask.words_of_query();
  std::int64_t loaded = -1;  // most bits are of one word of the query
  std::uint32_t of_query = 0, word = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const std::int64_t block = blocks_of_bits[bit];
    if (block < 0) break;
    if (block / 32 != loaded) {
      loaded = block / 32;
      of_query = blocks[loaded];
    }
    word |= (of_query >> (block % 32) & 1u) << bit;
  }
  p.out.bits[blockIdx.z * p.size.words_of_list() + row * p.size.bits.words_of_row + blockIdx.x] = word;
}

/// Bits of queries with blocks of their own, where keys own: a warp for each 32 queries (x), word of the
/// queries (y) and list (z). Each lane has a query, and then what all of them say of one block.
__global__ void visited_query_bits_kernel(const __grid_constant__ TileTablesProblem p) {
  const std::int64_t word = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (word >= p.size.bits.words_of_row) return;
  const MaskRule mask = p.mask.of_list(blockIdx.z);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t first_block = p.sides.own.front() / mask.block_size, row = word * 32 + lane;
  const std::int64_t word_of_query = first_block / 32 + blockIdx.y;
  const std::uint32_t of_query =
      row < p.sides.other.count
          ? mask.query_blocks[p.sides.other(row) * mask.words_of_query() + word_of_query]
          : 0;
  std::uint32_t of_block = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const std::uint32_t queries = __ballot_sync(0xffffffffu, of_query >> bit & 1u);
    if (bit == lane) of_block = queries;
  }
  const std::int64_t bit_row = word_of_query * 32 + lane - first_block;
  if (bit_row >= 0 && bit_row < p.size.bits.rows)
    p.out.bits[blockIdx.z * p.size.words_of_list() + bit_row * p.size.bits.words_of_row + word] = of_block;
}

/// What blocks leave of a pair of tiles. Most tiles that blocks do not cut are cut by spans alone.
enum class TileCoverage : std::uint8_t { empty, cut_by_spans, cut_by_bits, full };

/// Coverage of each pair of tiles, by a thread.
__global__ void block_coverage_kernel(const __grid_constant__ TileTablesProblem p) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread >= p.size.block_lists * p.size.own_tiles * p.size.other_tiles) return;
  const std::int64_t other = thread % p.size.other_tiles,
                     tile = thread / p.size.other_tiles % p.size.own_tiles,
                     list = thread / p.size.other_tiles / p.size.own_tiles;
  const std::int64_t first = tile * p.sides.own_tile,
                     last = min(first + p.sides.own_tile, p.sides.own.count) - 1;
  const std::int64_t columns = p.sides.other_tile, column = other * columns;
  const RowSpan* const spans = p.out.spans + list * p.size.spans_of_table();
  const RowSpan first_span = spans[first], last_span = spans[last];
  const bool whole_spans = last_span.begin <= column && column + columns <= first_span.end;
  bool some = false, whole_bits = true;
  if (first_span.begin < column + columns && column < last_span.end) {
    const MaskBits bits_of_rows{.of_32_rows = p.size.bits.of_32_rows};
    const int last_bits = p.out.bit_rows[last];  // they never decrease
    int before = -1;
    for (std::int64_t row = first; row <= last && before != last_bits; ++row) {
      const int bits = p.out.bit_rows[row];
      if (bits == before) continue;
      before = bits;
      const unsigned* const words =
          p.out.bits + list * p.size.words_of_list() + bits * p.size.bits.words_of_row;
      for (int i = 0; i < columns / 32; ++i) {
        const unsigned word = bits_of_rows.of_rows(words, column / 32, i);
        some = some || word != 0;
        whole_bits = whole_bits && word == 0xffffffffu;
      }
    }
  }
  p.out.coverage[thread] = static_cast<std::uint8_t>(!some         ? TileCoverage::empty
                                                     : !whole_bits ? TileCoverage::cut_by_bits
                                                     : whole_spans ? TileCoverage::full
                                                                   : TileCoverage::cut_by_spans);
}

/// Makes loops of coverage: one warp for each own tile of each list.
__global__ void block_loops_kernel(const __grid_constant__ TileTablesProblem p) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tiles = static_cast<int>(p.size.own_tiles), others = static_cast<int>(p.size.other_tiles);
  const int list = static_cast<int>(thread / 32 / tiles), tile = static_cast<int>(thread / 32 % tiles);
  if (list >= p.size.block_lists) return;
  const std::uint8_t* const covered_tiles = p.out.coverage + std::int64_t{list} * tiles * others;
  const auto coverage = [&](int own, int other) {
    return static_cast<TileCoverage>(covered_tiles[std::int64_t{own} * others + other]);
  };
  /// The next own tile from `own` on, in steps of `step`, that visits `other`; outside of all if none does.
  const auto visitor = [&](int own, int step, int other) {
    while (0 <= own && own < tiles && coverage(own, other) == TileCoverage::empty) own += step;
    return own;
  };
  const bool gradients = p.gradients != GradientSums::none;
  if (gradients && tile == 0) {
    for (int other = lane; other < others; other += 32) {
      const int first = visitor(0, 1, other);
      init_dq_semaphores(p, list, other, first < tiles ? first : -1);
    }
  }
  const int loop = list * tiles + tile, first_run = static_cast<int>(loop * p.size.runs_of_tile());
  int count = 0;
  for (int end = others; end > 0; end -= 32) {
    const int other = end - 1 - lane;
    const TileCoverage covered = other >= 0 ? coverage(tile, other) : TileCoverage::empty;
    const unsigned visited = __ballot_sync(0xffffffffu, covered != TileCoverage::empty);
    if (covered != TileCoverage::empty) {
      const int next = gradients ? visitor(tile + 1, 1, other) : tiles;
      const bool first = p.gradients == GradientSums::first_sets && visitor(tile - 1, -1, other) < 0;
      p.out.runs[first_run + count + __popc(visited & ((1u << lane) - 1))] = {
          other, other + 1,
          TileRun::pack(covered == TileCoverage::cut_by_spans, covered == TileCoverage::cut_by_bits, first),
          next};
    }
    count += __popc(visited);
  }
  if (lane == 0) p.out.loops[loop] = {first_run, count, count, 0};
}

}  // namespace

cudaError_t fill_tile_tables(const MaskRule& mask, const TileSides& sides, GradientSums gradients,
                             const TileTablesSize& size, const TableMemory& workspace, cudaStream_t stream) {
  const TileTablesProblem p{mask, sides, size, gradients, workspace};
  constexpr int threads = 128;
  const auto launch = [&](auto kernel, std::int64_t wanted_threads) {
    kernel<<<static_cast<unsigned>(ceil_divide(wanted_threads, std::int64_t{threads})), threads, 0, stream>>>(
        p);
    return cudaGetLastError();
  };
  const std::int64_t tiles = size.classes * size.own_tiles;
  cudaError_t error = launch(
      span_tables_kernel, std::max(tiles * 32, std::min<std::int64_t>(size.spans(), std::int64_t{1} << 17)));
  if (error != cudaSuccess || !size.lists()) return error;
  if (mask.query_blocks != nullptr) {
    const auto blocks_of = [](std::int64_t rows) {
      return static_cast<unsigned>(ceil_divide(rows, std::int64_t{threads}));
    };
    const auto words = static_cast<unsigned>(size.bits.words_of_row),
               lists = static_cast<unsigned>(size.block_lists);
    if (sides.own_is_query) {
      own_query_bits_kernel<<<dim3(words, blocks_of(sides.own.count), lists), threads, 0, stream>>>(p);
    } else {
      const auto words_of_query = static_cast<unsigned>(sides.own.back() / mask.block_size / 32 -
                                                        sides.own.front() / mask.block_size / 32 + 1);
      visited_query_bits_kernel<<<dim3(blocks_of(size.bits.words_of_row * 32), words_of_query, lists),
                                  threads, 0, stream>>>(p);
    }
    error = cudaGetLastError();
  } else {
    error = cudaMemsetAsync(
        workspace.bits, mask.blocks_excluded ? 0xff : 0,
        static_cast<std::size_t>(size.block_lists * size.words_of_list()) * sizeof(unsigned), stream);
    if (error == cudaSuccess) error = launch(block_bits_kernel, size.block_lists * mask.block_rows() * 32);
  }
  if (error != cudaSuccess) return error;
  const std::int64_t listed_tiles = size.block_lists * size.own_tiles;
  error = launch(block_coverage_kernel, listed_tiles * size.other_tiles);
  return error != cudaSuccess ? error : launch(block_loops_kernel, listed_tiles * 32);
}

}  // namespace annulus::attention::hopper
