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
  for (std::int64_t i = thread; i < p.size.key_boundaries(); i += threads) {
    const std::int64_t list = i / p.size.boundaries(), boundary = i % p.size.boundaries(),
                       head = list * p.size.heads_of_list, position = boundary * p.mask.block_size;
    const KeyPositions own = sides.own_of(head), other = sides.other_of(head);
    p.out.keys_below[i] = static_cast<int>((sides.own_is_query ? other : own).rows_below(position));
    if (list == 0)
      p.out.queries_below[boundary] =
          static_cast<int>((sides.own_is_query ? own : other).rows_below(position));
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
  const int* const keys_below = p.out.keys_below + (p.size.listed_keys ? table * p.size.boundaries() : 0);
  struct Rows {
    int begin, end;
  };
  const auto rows_of_block = [](const int* below, std::int64_t block) {
    return Rows{below[block], below[block + 1]};
  };
  const Rows queries = rows_of_block(p.out.queries_below, block_row);
  if (queries.begin == queries.end) return;
  const std::int64_t first_bit_row = sides.own_listed() ? 0 : sides.own.front() / mask.block_size;
  for (std::int64_t i = mask.block_row_starts[block_row] + threadIdx.x % 32;
       i < mask.block_row_starts[block_row + 1]; i += 32) {
    const std::int64_t block_column = mask.block_columns[i];
    const Rows keys = rows_of_block(keys_below, block_column);
    if (keys.begin == keys.end) continue;
    if (sides.own_is_query) {
      mark_rows(p, table, block_row - first_bit_row, keys.begin, keys.end);
    } else if (sides.own_listed()) {
      for (int key = keys.begin; key < keys.end; ++key) mark_rows(p, table, key, queries.begin, queries.end);
    } else {
      mark_rows(p, table, block_column - first_bit_row, queries.begin, queries.end);
    }
  }
}

/// Queries of a thread block of own_query_bits_kernel, and words of each.
constexpr int query_rows_at_once = 128, query_words_at_once = 32;

/// Bits of queries with blocks of their own, where queries own: a thread block for some words (x) of some
/// queries (y) of a list (z).
__global__ void own_query_bits_kernel(const __grid_constant__ TileTablesProblem p) {
  const PositionMap &own = p.sides.own, &other = p.sides.other;
  const MaskRule mask = p.mask.of_list(blockIdx.z);
  const std::int64_t rows_of_bit = p.size.bits.of_32_rows ? 32 : 1;
  const std::int64_t first_word = std::int64_t{blockIdx.x} * query_words_at_once,
                     first_row = std::int64_t{blockIdx.y} * query_rows_at_once;
  __shared__ int block_of_bit[32][query_words_at_once];  // −1 behind the last row of the other side
  __shared__ const std::uint32_t* blocks_of_row[query_rows_at_once];
  for (int i = static_cast<int>(threadIdx.x); i < 32 * query_words_at_once;
       i += static_cast<int>(blockDim.x)) {
    const int word = i % query_words_at_once, bit = i / query_words_at_once;
    const std::int64_t row = ((first_word + word) * 32 + bit) * rows_of_bit;
    block_of_bit[bit][word] = row < other.count ? static_cast<int>(other(row) / mask.block_size) : -1;
  }
  for (int i = static_cast<int>(threadIdx.x); i < query_rows_at_once; i += static_cast<int>(blockDim.x)) {
    if (first_row + i < own.count)
      blocks_of_row[i] = mask.query_blocks + own(first_row + i) * mask.words_of_query();
  }
  __syncthreads();
  const int word = static_cast<int>(threadIdx.x) % query_words_at_once;
  if (first_word + word >= p.size.bits.words_of_row) return;
  unsigned begins = 0, inside = 0;  // bits at which another block begins, and bits that stand for rows
  for (int bit = 0; bit < 32; ++bit) {
    const int block = block_of_bit[bit][word];
    if (block >= 0) inside |= 1u << bit;
    if (bit == 0 || block != block_of_bit[bit - 1][word]) begins |= 1u << bit;
  }
  begins &= inside;
  unsigned* const out = p.out.bits + blockIdx.z * p.size.words_of_list() + first_word + word;
  const int step = static_cast<int>(blockDim.x) / query_words_at_once;
  for (int i = static_cast<int>(threadIdx.x) / query_words_at_once;
       i < query_rows_at_once && first_row + i < own.count; i += step) {
    const std::uint32_t* const blocks = blocks_of_row[i];
    int loaded = -1;  // most blocks are of one word of the query
    std::uint32_t of_query = 0;
    unsigned bits = 0;
    for (unsigned left = begins; left != 0; left &= left - 1) {
      const unsigned from = left & (0u - left), behind = left & (left - 1);
      const int block = block_of_bit[__ffs(static_cast<int>(left)) - 1][word];
      if (block / 32 != loaded) {
        loaded = block / 32;
        of_query = blocks[loaded];
      }
      // All bits from `from` on, but for those of the blocks behind this one.
      if ((of_query >> block % 32 & 1u) != 0) bits |= (0u - from) & ~(0u - (behind & (0u - behind))) & inside;
    }
    out[(first_row + i) * p.size.bits.words_of_row] = bits;
  }
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

/// A byte of TableMemory::coverage: a coverage, and how many own tiles further on the next visitor of the
/// other tile lies. If none of the next `farthest` − 1 own tiles visits it, it says `farthest`.
constexpr int farthest = 63;
__device__ std::uint8_t packed(TileCoverage coverage, int steps) {
  return static_cast<std::uint8_t>(static_cast<int>(coverage) | steps << 2);
}
__device__ TileCoverage coverage_of(std::uint8_t byte) {
  return static_cast<TileCoverage>(byte & 3);
}
__device__ bool is_visited(std::uint8_t byte) {
  return coverage_of(byte) != TileCoverage::empty;
}
__device__ int steps_of(std::uint8_t byte) {
  return byte >> 2;
}

/// Other tiles that a thread block of block_coverage_kernel looks at, and the words of their bits at most.
ANNULUS_FUNCTION int other_tiles_at_once(const TileTablesProblem& p) {
  return p.size.bits.of_32_rows ? 1024 : 256;
}
ANNULUS_FUNCTION int words_at_once(const TileTablesProblem& p) {
  const int words = other_tiles_at_once(p) * (p.sides.other_tile / 32);
  return p.size.bits.of_32_rows ? words / 32 : words;
}

/// Coverage of some other tiles (y) by an own tile (x) of a list (z). What any and what all own rows have
/// goes to shared memory first.
__global__ void block_coverage_kernel(const __grid_constant__ TileTablesProblem p) {
  extern __shared__ unsigned any[];
  unsigned* const all = any + words_at_once(p);
  unsigned* const bit_rows = all + words_at_once(p);  // of the own rows, each once
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int columns = p.sides.other_tile, groups = columns / 32;  // of 32 rows
  const std::int64_t list = blockIdx.z, tile = blockIdx.x;
  const std::int64_t first = tile * p.sides.own_tile,
                     last = min(first + p.sides.own_tile, p.sides.own.count) - 1;
  const int first_other = static_cast<int>(blockIdx.y) * other_tiles_at_once(p),
            others = min(other_tiles_at_once(p), static_cast<int>(p.size.other_tiles) - first_other);
  const RowSpan* const spans = p.out.spans + list * p.size.spans_of_table();
  const RowSpan first_span = spans[first], last_span = spans[last];
  // What any own row sees of these tiles.
  const int begin = max(first_span.begin / columns - first_other, 0),
            end = min(ceil_divide(last_span.end, columns) - first_other, others);
  std::uint8_t* const covered =
      p.out.coverage + ((list * p.size.own_tiles + tile) * p.size.other_tiles + first_other);
  if (begin < end) {
    const std::int64_t first_word = blockIdx.y * std::int64_t{words_at_once(p)};
    const int words =
        static_cast<int>(min(std::int64_t{words_at_once(p)}, p.size.bits.words_of_row - first_word));
    __shared__ int bit_row_count;
    for (int i = thread; i < words; i += threads) {
      any[i] = 0;
      all[i] = 0xffffffffu;
    }
    if (thread == 0) bit_row_count = 0;
    __syncthreads();
    for (std::int64_t row = first + thread; row <= last; row += threads) {
      const int bit_row = p.out.bit_rows[row];
      if (row == first || p.out.bit_rows[row - 1] != bit_row)
        bit_rows[atomicAdd(&bit_row_count, 1)] = static_cast<unsigned>(bit_row);
    }
    __syncthreads();
    const int parts = max(threads / words, 1);  // of the rows, so that no thread idles
    for (int i = thread; i < words * parts; i += threads) {
      const unsigned* const bits = p.out.bits + list * p.size.words_of_list() + first_word + i % words;
      unsigned of_any = 0, of_all = 0xffffffffu;
      for (int row = i / words; row < bit_row_count; row += parts) {
        const unsigned word = bits[bit_rows[row] * p.size.bits.words_of_row];
        of_any |= word;
        of_all &= word;
      }
      atomicOr(any + i % words, of_any);
      atomicAnd(all + i % words, of_all);
    }
    __syncthreads();
  }
  const MaskBits bits{.of_32_rows = p.size.bits.of_32_rows};
  for (int other = thread; other < others; other += threads) {
    bool some = false, whole_bits = true;
    for (int i = 0; i < (begin <= other && other < end ? groups : 0); ++i) {
      some = some || bits.of_rows(any, std::int64_t{other} * groups, i) != 0;
      whole_bits = whole_bits && bits.of_rows(all, std::int64_t{other} * groups, i) == 0xffffffffu;
    }
    const int column = (first_other + other) * columns;
    const bool whole_spans = last_span.begin <= column && column + columns <= first_span.end;
    covered[other] = packed(!some         ? TileCoverage::empty
                            : !whole_bits ? TileCoverage::cut_by_bits
                            : whole_spans ? TileCoverage::full
                                          : TileCoverage::cut_by_spans,
                            0);
  }
}

/// Adds to coverage where the next visitors are, and sets what the first one of each other tile has to know:
/// a thread for each other tile of each list.
__global__ void next_visitors_kernel(const __grid_constant__ TileTablesProblem p) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread >= p.size.block_lists * p.size.other_tiles) return;
  const int list = static_cast<int>(thread / p.size.other_tiles),
            other = static_cast<int>(thread % p.size.other_tiles), tiles = static_cast<int>(p.size.own_tiles);
  std::uint8_t* const column = p.out.coverage + std::int64_t{list} * tiles * p.size.other_tiles + other;
  int first = -1, steps = farthest;
  constexpr int at_once = 16;  // loads that do not wait for each other
  for (int end = tiles; end > 0; end -= at_once) {
    std::uint8_t bytes[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (end - 1 - i >= 0) bytes[i] = column[(end - 1 - i) * p.size.other_tiles];
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int own = end - 1 - i;
      if (own < 0) break;
      column[own * p.size.other_tiles] = packed(coverage_of(bytes[i]), steps);
      if (is_visited(bytes[i])) first = own;
      steps = is_visited(bytes[i]) ? 1 : min(steps + 1, farthest);
    }
  }
  init_dq_semaphores(p, list, other, first);
}

/// Makes loops of coverage: one warp for each own tile of each list.
__global__ void block_loops_kernel(const __grid_constant__ TileTablesProblem p) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tiles = static_cast<int>(p.size.own_tiles), others = static_cast<int>(p.size.other_tiles);
  const int list = static_cast<int>(thread / 32 / tiles), tile = static_cast<int>(thread / 32 % tiles);
  if (list >= p.size.block_lists) return;
  const std::uint8_t* const covered_tiles = p.out.coverage + std::int64_t{list} * tiles * others;
  const auto covered = [&](int own, int other) { return covered_tiles[std::int64_t{own} * others + other]; };
  /// The next own tile that visits what this one does; the number of tiles if none does.
  const auto next_visitor = [&](int other) {
    int own = tile;
    do {
      own += steps_of(covered(own, other));
    } while (own < tiles && !is_visited(covered(own, other)));
    return min(own, tiles);
  };
  const bool gradients = p.gradients != GradientSums::none;
  const int loop = list * tiles + tile, first_run = static_cast<int>(loop * p.size.runs_of_tile());
  int count = 0;
  for (int end = others; end > 0; end -= 32) {
    const int other = end - 1 - lane;
    const TileCoverage coverage = other >= 0 ? coverage_of(covered(tile, other)) : TileCoverage::empty;
    const unsigned visited = __ballot_sync(0xffffffffu, coverage != TileCoverage::empty);
    if (coverage != TileCoverage::empty) {
      const bool first = p.gradients == GradientSums::first_sets &&
                         p.out.first_writers[std::int64_t{list} * others + other] == tile;
      p.out.runs[first_run + count + __popc(visited & ((1u << lane) - 1))] = {
          other, other + 1,
          TileRun::pack(coverage == TileCoverage::cut_by_spans, coverage == TileCoverage::cut_by_bits, first),
          gradients ? next_visitor(other) : tiles};
    }
    count += __popc(visited);
  }
  if (lane == 0) p.out.loops[loop] = {first_run, count, count, 0};
}

/// Makes loops of bits that stand for 32 rows, where nobody adds to gradients: one warp for each own tile of
/// each list, and a lane for each word. What any and what all own rows have is not written down.
__global__ void loops_of_words_kernel(const __grid_constant__ TileTablesProblem p) {
  extern __shared__ int bit_rows_of_warps[];
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tiles = static_cast<int>(p.size.own_tiles), others = static_cast<int>(p.size.other_tiles);
  const int list = static_cast<int>(thread / 32 / tiles), tile = static_cast<int>(thread / 32 % tiles);
  if (list >= p.size.block_lists) return;
  const std::int64_t first = std::int64_t{tile} * p.sides.own_tile,
                     last = min(first + p.sides.own_tile, p.sides.own.count) - 1;
  // The rows of bits of the own rows, each once.
  int* const bit_rows = bit_rows_of_warps + threadIdx.x / 32 * p.sides.own_tile;
  int bit_row_count = 0;
  for (std::int64_t row = first + lane; row - lane <= last; row += 32) {
    const int bit_row = row <= last ? p.out.bit_rows[row] : -1;
    const bool found = row <= last && (row == first || p.out.bit_rows[row - 1] != bit_row);
    const unsigned all_found = __ballot_sync(0xffffffffu, found);
    if (found) bit_rows[bit_row_count + __popc(all_found & ((1u << lane) - 1))] = bit_row;
    bit_row_count += __popc(all_found);
  }
  __syncwarp();

  const RowSpan* const spans = p.out.spans + list * p.size.spans_of_table();
  const RowSpan first_span = spans[first], last_span = spans[last];
  const int columns = p.sides.other_tile, bits_of_tile = columns / 32,  // a power of two, as tiles have
      tiles_of_word = 32 / bits_of_tile;
  const int begin = first_span.begin / columns, end = min(ceil_divide(last_span.end, columns), others);
  const unsigned first_bits = 0xffffffffu / ((1u << bits_of_tile) - 1);  // of each tile
  const unsigned* const bits = p.out.bits + list * p.size.words_of_list();
  const int loop = list * tiles + tile, first_run = static_cast<int>(loop * p.size.runs_of_tile());
  int count = 0;
  for (int end_word = ceil_divide(end, tiles_of_word); end_word * tiles_of_word > begin; end_word -= 32) {
    const int word = end_word - 1 - lane, first_tile = word * tiles_of_word;
    unsigned any = 0, all = 0xffffffffu;
    for (int i = 0; i < (first_tile + tiles_of_word > begin && word >= 0 ? bit_row_count : 0); ++i) {
      const unsigned of_row = bits[bit_rows[i] * p.size.bits.words_of_row + word];
      any |= of_row;
      all &= of_row;
    }
    for (int i = 1; i < bits_of_tile; i *= 2) {
      any |= any >> i;
      all &= all >> i;
    }
    any &= first_bits;
    if (first_tile < begin) any &= 0xffffffffu << min((begin - first_tile) * bits_of_tile, 31);
    if (first_tile + tiles_of_word > end) any &= (1u << (end - first_tile) * bits_of_tile) - 1;
    const int here = __popc(any);
    int behind = here;  // visits of this lane and of those before it
    for (int i = 1; i < 32; i *= 2) {
      const int more = __shfl_up_sync(0xffffffffu, behind, i);
      if (lane >= i) behind += more;
    }
    TileRun* run = p.out.runs + first_run + count + behind - here;
    for (unsigned left = any; left != 0; ++run) {
      const int bit = 31 - __clz(static_cast<int>(left));
      left ^= 1u << bit;
      const int other = first_tile + bit / bits_of_tile, column = other * columns;
      const bool whole_bits = (all >> bit & 1u) != 0;
      const bool whole_spans = last_span.begin <= column && column + columns <= first_span.end;
      *run = {other, other + 1, TileRun::pack(whole_bits && !whole_spans, !whole_bits, false), tiles};
    }
    count += __shfl_sync(0xffffffffu, behind, 31);
  }
  if (lane == 0) p.out.loops[loop] = {first_run, count, count, 0};
}

}  // namespace

cudaError_t fill_tile_tables(const MaskRule& mask, const TileSides& sides, GradientSums gradients,
                             const TileTablesSize& size, const TableMemory& workspace, cudaStream_t stream) {
  const TileTablesProblem p{mask, sides, size, gradients, workspace};
  constexpr int threads = 128;
  const auto launch = [&](auto kernel, std::int64_t wanted_threads, std::size_t shared_bytes = 0) {
    kernel<<<static_cast<unsigned>(ceil_divide(wanted_threads, std::int64_t{threads})), threads, shared_bytes,
             stream>>>(p);
    return cudaGetLastError();
  };
  const std::int64_t tiles = size.classes * size.own_tiles;
  cudaError_t error = launch(
      span_tables_kernel, std::max(tiles * 32, std::min<std::int64_t>(size.spans(), std::int64_t{1} << 17)));
  if (error != cudaSuccess || !size.lists()) return error;
  const auto many = [](std::int64_t of, std::int64_t at_once) {
    return static_cast<unsigned>(ceil_divide(of, at_once));
  };
  const auto lists = static_cast<unsigned>(size.block_lists);
  if (mask.query_blocks != nullptr) {
    if (sides.own_is_query) {
      const dim3 blocks(many(size.bits.words_of_row, query_words_at_once),
                        many(sides.own.count, query_rows_at_once), lists);
      own_query_bits_kernel<<<blocks, threads, 0, stream>>>(p);
    } else {
      const auto words_of_query = static_cast<unsigned>(sides.own.back() / mask.block_size / 32 -
                                                        sides.own.front() / mask.block_size / 32 + 1);
      visited_query_bits_kernel<<<dim3(many(size.bits.words_of_row * 32, threads), words_of_query, lists),
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
  if (!size.needs_coverage) {
    const auto bit_rows = threads / 32 * sizeof(int) * static_cast<std::size_t>(sides.own_tile);
    return launch(loops_of_words_kernel, size.block_lists * size.own_tiles * 32, bit_rows);
  }
  const dim3 blocks(static_cast<unsigned>(size.own_tiles), many(size.other_tiles, other_tiles_at_once(p)),
                    lists);
  const auto shared_bytes =
      sizeof(unsigned) * static_cast<std::size_t>(2 * words_at_once(p) + sides.own_tile);
  block_coverage_kernel<<<blocks, threads, shared_bytes, stream>>>(p);
  error = cudaGetLastError();
  if (error == cudaSuccess && gradients != GradientSums::none)
    error = launch(next_visitors_kernel, size.block_lists * size.other_tiles);
  return error != cudaSuccess ? error : launch(block_loops_kernel, size.block_lists * size.own_tiles * 32);
}

}  // namespace annulus::attention::hopper
