#pragma once

#include <cstdint>

/// What a mask leaves of the other side for the rows and tiles of one side, as numbers in device memory.
/// Kernels know neither positions nor masks: whoever fills these tables decides. Forward: queries own, keys
/// are visited. Backward: keys own, queries are visited.
namespace annulus::attention::hopper {

/// Rows [begin, end) of the other side that a row attends to or is attended by.
struct RowSpan {
  int begin, end;
};

/// Tiles [begin, end) of the other side, visited from the last to the first.
struct alignas(16) TileRun {
  int begin, end;
  int partial;  ///< 1: spans of rows have to be applied to their elements; 0: every row sees all of them
  int sums;     ///< backward: what adding to the gradients of visited rows takes (Sums)
};

/// How an own tile adds to the gradients of the rows it visits (query_gradient.hpp).
enum Sums : int {
  in_order_of_lanes,  ///< the fast way, which all but a few tiles go
  first_of_lanes,     ///< the first own tile writes the sums, where nothing was there before
  last_of_lanes,      ///< the last own tile that adds brings the sums back into the order of rows
  only_one,           ///< the first and the last, where nothing was there before
  in_order_of_rows,
};

/// What an own tile visits.
struct alignas(16) TileWalk {
  int first_run, runs;  ///< in WalkTables::runs; no run is empty
  int tiles;            ///< of all runs
  int unused;
};

struct WalkTables {
  const RowSpan* spans = nullptr;  ///< of each own row
  const TileRun* runs = nullptr;
  const TileWalk* walks = nullptr;  ///< of each own tile
  /// Backward: of each visited tile, the first own tile that visits it, or −1. Own tiles behind it, up to the
  /// last one that visits it, leave no gap.
  const int* first_visitors = nullptr;
};

/// Steps through the tiles of a walk; it starts in front of the first one. Who takes the steps: one thread,
/// or whole warps, which the compiler is told.
template <bool whole_warps>
class Cursor {
 public:
  __device__ __forceinline__ Cursor(const TileRun* runs, int count) : next_(runs), left_(count) {
    next_run();
  }

  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ bool partial() const { return partial_; }
  __device__ __forceinline__ int sums() const { return sums_; }
  /// To the next tile of this run; false at its end.
  __device__ __forceinline__ bool next_in_run() { return --tile_ >= begin_; }
  /// In front of the first tile of the next run; false behind the last one.
  __device__ __forceinline__ bool next_run() {
    if (left_ == 0) return false;
    take(*next_);
    ++next_;
    --left_;
    return true;
  }
  /// To the next tile; false behind the last one.
  __device__ __forceinline__ bool next() { return next_in_run() || (next_run() && next_in_run()); }

 private:
  __device__ __forceinline__ void take(const TileRun& run) {
    const int4 v = *reinterpret_cast<const int4*>(&run);
    begin_ = agreed(v.x);
    tile_ = agreed(v.y);
    partial_ = agreed(v.z) != 0;
    sums_ = agreed(v.w);
  }

  __device__ __forceinline__ static int agreed(int value) {
    if constexpr (whole_warps) value = __shfl_sync(0xffffffffu, value, 0);
    return value;
  }

  const TileRun* next_;
  int left_, begin_ = 0, tile_ = 0, sums_ = 0;
  bool partial_ = false;
};

}  // namespace annulus::attention::hopper
