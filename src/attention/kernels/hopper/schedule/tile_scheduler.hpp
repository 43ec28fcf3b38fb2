#pragma once

#include "attention/kernels/hopper/ptx/wgmma.hpp"
#include "attention/kernels/hopper/schedule/tile_loop.hpp"

/// How blocks share the tiles of all heads: each takes a tile number, computes what it stands for, takes the
/// next. Tile numbers are given out in order, longest tiles first, so any number of blocks ends at about the
/// same time; results do not depend on who computes what.
namespace annulus::attention::hopper {

/// Number of a tile to the tile. Heads run in sections that fit the L2 cache; within one, all heads of a tile
/// come before the next tile.
struct TileOrder {
  int heads;  ///< batch × heads × dilation classes
  int tiles;  ///< of a head and class
  int heads_in_section;
  bool last_tile_first;
  /// 1, or 2: each half of a tile's loops is a work of its own.
  int parts = 1;

  struct Place {
    int head, tile, part;
  };
  __device__ __forceinline__ Place place(int number_with_part) const {
    const int number = number_with_part / parts;
    const int section = number / (heads_in_section * tiles), rest = number % (heads_in_section * tiles);
    const int here = min(heads_in_section, heads - section * heads_in_section);
    const int tile = rest / here;
    return {section * heads_in_section + rest % here, last_tile_first ? tiles - 1 - tile : tile,
            number_with_part % parts};
  }
  ANNULUS_FUNCTION std::int64_t count() const { return std::int64_t{heads} * tiles * parts; }
};

/// A head of batch × heads × dilation classes, the last index running fastest.
struct HeadAndClass {
  int batch, head, dilation_class;

  __device__ __forceinline__ static HeadAndClass of(int number, int heads, int classes) {
    const int head = number / classes;
    return {head / heads, head % heads, number % classes};
  }
};

/// Returns the number, of which the compiler then knows nothing: what is computed from it is computed again
/// instead of being kept in registers for the length of a loop.
__device__ __forceinline__ int recomputed(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

/// What a block works on: the producer thread takes it, all others read it. Two buffers, so that the next one
/// can be prepared meanwhile.
struct WorkTile {
  int head, tile;  ///< head of batch × heads × dilation classes; −1: there is no more work
  int first_run;   ///< of its first table
  int runs;        ///< of all of its tables
};

class WorkTileBuffer {
 public:
  static constexpr int count = 2, bytes = count * 16 + count * 2 * 8;

  __device__ __forceinline__ explicit WorkTileBuffer(std::uint32_t address) : address_(address) {}

  /// Initializes the barriers; one thread does it. `readers` warps read each buffer.
  __device__ __forceinline__ void init(int readers) const {
    for (int i = 0; i < count; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), readers);
    }
  }
  /// The n-th work, by the producer thread.
  __device__ __forceinline__ void put(int n, const WorkTile& work) const {
    wait(empty(n % count), n / count % 2 ^ 1);
    store_shared(address_ + n % count * 16, make_int4(work.head, work.tile, work.first_run, work.runs));
    arrive(full(n % count));
  }
  /// The n-th work, by whole warps.
  __device__ __forceinline__ WorkTile get(int n) const {
    wait(full(n % count), n / count % 2);
    const int4 v = load_shared_int4(address_ + n % count * 16);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(empty(n % count));
    return {uniform(v.x), uniform(v.y), uniform(v.z), uniform(v.w)};
  }

 private:
  __device__ __forceinline__ std::uint32_t full(int i) const { return address_ + count * 16 + i * 8; }
  __device__ __forceinline__ std::uint32_t empty(int i) const { return full(count + i); }

  std::uint32_t address_;
};

/// The producer thread's side: tile numbers, and the loops of their tiles. Work without tiles is passed
/// over. A block takes a tile number when it is about to copy for it, not before: blocks that keep an order
/// may wait for what lower numbers stand for, and those are being computed then.
class TileScheduler {
 public:
  /// `heads`: of queries that a head of `order` stands for; they have `tables_of_work` tables, one behind the
  /// other. `idle`: work without tiles is given out, too, because somebody has to write what nothing adds to.
  __device__ __forceinline__ TileScheduler(const TileOrder& order, const TileTables& tables, int heads,
                                           int tables_of_work, int* tile_counter, bool idle)
      : order_(order),
        tables_(tables),
        tile_counter_(tile_counter),
        heads_(heads),
        tables_of_work_(tables_of_work),
        idle_(idle) {}

  /// The next work; head −1 behind the last.
  __device__ __forceinline__ WorkTile next() {
    for (;;) {
      const int number = atomicAdd(tile_counter_, 1);
      if (number >= order_.count()) break;
      const auto place = order_.place(number);
      const TileLoop* loop =
          &tables_.loops[tables_.table_of(place.head * heads_) * order_.tiles + place.tile];
      const int4 first = *reinterpret_cast<const int4*>(loop);
      int runs = first.y;
      for (int i = 1; i < tables_of_work_; ++i) runs += (loop += order_.tiles)->runs;
      int begin = 0, end = runs;
      if (order_.parts == 2) (place.part == 0 ? end : begin) = (runs + 1) / 2;
      if (end > begin || idle_) return {place.head, place.tile, first.x + begin, end - begin};
    }
    return {-1, 0, 0, 0};
  }

 private:
  const TileOrder& order_;
  const TileTables& tables_;
  int* tile_counter_;
  int heads_, tables_of_work_;
  bool idle_;
};

}  // namespace annulus::attention::hopper
