// The kernel that turns positions and a mask into the tables of a walk.

#include <algorithm>
#include <annulus/base/division.hpp>

#include "attention/hopper/walk_tables.hpp"

namespace annulus::attention::hopper {
namespace {

/// One side's view of the other.
struct WalkProblem {
  MaskRule mask;
  WalkSides sides;
  RowSpan* spans;       ///< (own rows)
  TileRun* runs;        ///< (own tiles, runs_of_interval)
  TileWalk* walks;      ///< (own tiles)
  int* first_visitors;  ///< (other tiles), or null where no gradients are added
  GradientOrder gradients;
  int* zeros;  ///< counters that the kernel behind this one wants to find at 0
  std::int64_t zero_count;
};

__device__ RowSpan span_of(const WalkProblem& p, std::int64_t row) {
  const std::int64_t position = p.sides.own(row);
  const KeyRange reach = p.sides.own_is_query ? p.mask.reach(position, p.mask.left, p.mask.right)
                                              : p.mask.reach(position, p.mask.right, p.mask.left);
  return {static_cast<int>(p.sides.other.rows_below(reach.begin)),
          static_cast<int>(p.sides.other.rows_below(reach.end))};
}

/// One warp for each own tile.
__global__ void walk_tables_kernel(const __grid_constant__ WalkProblem p) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = thread; i < p.zero_count; i += threads) p.zeros[i] = 0;
  for (std::int64_t row = thread; row < p.sides.own.count; row += threads) p.spans[row] = span_of(p, row);

  const int tile = static_cast<int>(thread / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int tiles = static_cast<int>(ceil_divide(p.sides.own.count, p.sides.own_tile));
  if (tile >= tiles) return;
  const std::int64_t first = std::int64_t{tile} * p.sides.own_tile;
  const std::int64_t last = min(first + p.sides.own_tile, p.sides.own.count) - 1;
  // Divisions in 64 bits take long: a lane each for the first and the last row, the row before and the row
  // behind.
  const std::int64_t wanted = lane == 1   ? last
                              : lane == 2 ? max(first - 1, std::int64_t{0})
                              : lane == 3 ? last + 1
                                          : first;
  const RowSpan lanes_span = span_of(p, min(wanted, p.sides.own.count - 1));
  const auto span_from = [&](int from) {
    return RowSpan{__shfl_sync(0xffffffffu, lanes_span.begin, from),
                   __shfl_sync(0xffffffffu, lanes_span.end, from)};
  };
  const RowSpan first_span = span_from(0), last_span = span_from(1), before = span_from(2),
                behind = span_from(3);
  const int begin = first_span.begin / p.sides.other_tile,
            end = ceil_divide(last_span.end, p.sides.other_tile);
  // Both ends of walks never decrease. This tile is the first visitor of what lies behind the end of the walk
  // before it, and the last one of what lies in front of the beginning of the walk behind it.
  const bool is_last = tile == tiles - 1;
  const int others = static_cast<int>(ceil_divide(p.sides.other.count, p.sides.other_tile));
  if (p.first_visitors != nullptr) {
    const int from = tile == 0 ? 0 : ceil_divide(before.end, p.sides.other_tile);
    for (int other = from + lane; other < (is_last ? others : end); other += 32) {
      p.first_visitors[other] = begin <= other && other < end ? tile : -1;
    }
  }
  if (lane != 0) return;
  // Rows only ever see more on the right and less on the left, so what the first and the last row see is seen
  // by all.
  const int whole_begin = ceil_divide(last_span.begin, p.sides.other_tile),
            whole_end = first_span.end / p.sides.other_tile;
  // Tiles from rows_begin on are added to in the order of rows, from first_begin on for the first time, up to
  // last_end for the last time.
  int rows_begin = end, first_begin = end, last_end = begin;
  if (p.gradients.kind != GradientOrder::none) {
    const bool all = p.gradients.kind == GradientOrder::rows;
    rows_begin = all ? 0 : static_cast<int>(p.sides.other.count / p.sides.other_tile);
  }
  if (p.gradients.kind == GradientOrder::lanes_in_turn) {
    if (p.gradients.fresh) first_begin = tile == 0 ? begin : ceil_divide(before.end, p.sides.other_tile);
    last_end = is_last ? end : behind.begin / p.sides.other_tile;
  }
  const auto sums_of = [&](int other) {
    if (other >= rows_begin) return in_order_of_rows;
    if (other >= first_begin) return other < last_end ? only_one : first_of_lanes;
    return other < last_end ? last_of_lanes : in_order_of_lanes;
  };
  const auto run_of = [&](int other) {
    const bool whole = whole_begin <= other && other < whole_end;
    return TileRun{other, other + 1, whole ? 0 : 1, sums_of(other)};
  };
  TileWalk walk{tile * runs_of_interval, 0, max(end - begin, 0), 0};
  for (int run_end = end; run_end > begin;) {
    TileRun run = run_of(run_end - 1);
    run.end = run_end;
    run.begin = begin;
    for (const int cut : {whole_begin, whole_end, rows_begin, first_begin, last_end}) {
      if (cut < run_end) run.begin = max(run.begin, cut);
    }
    p.runs[walk.first_run + walk.runs++] = run;
    run_end = run.begin;
  }
  p.walks[tile] = walk;
}

}  // namespace

cudaError_t fill_walk_tables(const MaskRule& mask, const WalkSides& sides, GradientOrder gradients,
                             const Workspace& workspace, cudaStream_t stream) {
  WalkProblem p{};
  p.mask = mask;
  p.sides = sides;
  p.spans = workspace.spans;
  p.runs = workspace.runs;
  p.walks = workspace.walks;
  p.first_visitors = gradients.kind == GradientOrder::none ? nullptr : workspace.first_visitors;
  p.gradients = gradients;
  p.zeros = workspace.tickets;
  p.zero_count = workspace.counters;
  constexpr int threads = 128;
  const std::int64_t rows = sides.own.count, tiles = ceil_divide(rows, sides.own_tile);
  const std::int64_t blocks =
      std::max(ceil_divide(tiles * 32, threads), std::min<std::int64_t>(ceil_divide(rows, threads), 1024));
  walk_tables_kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace annulus::attention::hopper
