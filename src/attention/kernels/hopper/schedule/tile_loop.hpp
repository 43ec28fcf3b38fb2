#pragma once

#include <cstdint>

#include "attention/kernels/hopper/ptx/instructions.hpp"
#include "attention/kernels/hopper/schedule/loop_tables.hpp"

/// Steps through the tables of a loop (loop_tables.hpp), by kernels.
namespace annulus::attention::hopper {

/// Steps through the tiles of a loop; it starts in front of the first one. Who takes the steps: one thread,
/// or whole warps, which the compiler is told.
template <bool whole_warps>
class TileIterator {
 public:
  __device__ __forceinline__ TileIterator(const TileRun* runs, int count) : next_(runs), left_(count) {
    prefetch();
    next_run();
  }

  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ int how() const { return how_; }
  __device__ __forceinline__ bool partial() const { return TileRun::partial(how_); }
  __device__ __forceinline__ bool bits() const { return TileRun::bits(how_); }
  __device__ __forceinline__ int next_own_tile() const { return next_own_tile_; }
  /// Goes to the next tile of this run; false at its end.
  __device__ __forceinline__ bool next_in_run() { return --tile_ >= begin_; }
  /// Goes in front of the first tile of the next run; false behind the last one.
  __device__ __forceinline__ bool next_run() {
    if (left_ == 0) return false;
    begin_ = agreed(ahead_.x);
    tile_ = agreed(ahead_.y);
    how_ = agreed(ahead_.z);
    next_own_tile_ = agreed(ahead_.w);
    ++next_;
    --left_;
    prefetch();
    return true;
  }
  /// Whether a tile follows this one.
  __device__ __forceinline__ bool more() const { return left_ > 0 || tile_ > begin_; }
  /// Goes to the next tile; false behind the last one.
  __device__ __forceinline__ bool next() { return next_in_run() || (next_run() && next_in_run()); }

 private:
  /// Block lists have a run for each tile: the next one is under way while this one is computed.
  __device__ __forceinline__ void prefetch() {
    if (left_ > 0) ahead_ = *reinterpret_cast<const int4*>(next_);
  }

  __device__ __forceinline__ static int agreed(int value) {
    if constexpr (whole_warps) value = __shfl_sync(0xffffffffu, value, 0);
    return value;
  }

  const TileRun* next_;
  int4 ahead_ = {};
  int left_, begin_ = 0, tile_ = 0, how_ = 0, next_own_tile_ = 0;
};

/// Tiles of a loop that are computed at once, side by side.
template <int count>
struct TileGroup {
  /// Number of a tile that the loop has no more: it lies in front of all spans, which see nothing of it.
  static constexpr int absent = -(1 << 20);

  int tile[count], how[count];
  bool last = true;  ///< of its loop

  /// The next tiles of a loop; false if there is none.
  template <bool whole_warps>
  __device__ __forceinline__ bool take(TileIterator<whole_warps>& cursor) {
    bool some = cursor.next();
    const bool any = some;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      tile[i] = some ? cursor.tile() : absent;
      how[i] = some ? cursor.how() : TileRun::pack(true, false, false);
      some = some && i + 1 < count && cursor.next();
    }
    last = !cursor.more();
    return any;
  }
  __device__ __forceinline__ bool partial() const {
    bool some = false;
#pragma unroll
    for (int i = 0; i < count; ++i) some = some || TileRun::partial(how[i]);
    return some;
  }

  /// Through shared memory, from the producer thread to whole warps: they need not iterate themselves.
  static constexpr int bytes = 16;
  __device__ __forceinline__ void put(std::uint32_t address) const {
    static_assert(count == 2);
    store_shared(address, make_int4(tile[0], tile[1], how[0] + 16 * how[1], last ? 1 : 0));
  }
  __device__ __forceinline__ void get(std::uint32_t address) {
    static_assert(count == 2);
    const int4 v = load_shared_int4(address);
    tile[0] = v.x;
    tile[1] = v.y;
    const int flags = uniform(v.z + 256 * v.w);
    how[0] = flags % 16;
    how[1] = flags / 16 % 16;
    last = flags >= 256;
  }
};

}  // namespace annulus::attention::hopper
