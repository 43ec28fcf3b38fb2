#pragma once

#include "attention/kernels/hopper/backward/query_tiles.hpp"

/// How dQ leaves a block. The consumer warps put the dQ of a query tile into a buffer in shared memory and
/// compute on; one thread has TMA add the buffer to device memory. Blocks that own different keys add to the
/// same rows. In the deterministic mode they do so in the order of their key tiles: each query tile has a
/// semaphore that holds the key tile which adds next. Its block adds, waits until its additions are done, and
/// releases the semaphore to the next one. Consumer warps wait for a semaphore only when the buffer is still
/// full a whole query tile later.
///
/// No block waits for ever: tile numbers are given out in the order of key tiles, and a block waits for lower
/// numbers alone. No block waits long: all blocks visit queries from the last tile to the first, and start
/// one after the other.
namespace annulus::attention::hopper {

/// How the consumer warpgroups share dQ of a query tile: each has 64 rows, or each has all rows of every
/// second or third tile.
template <class Tile>
struct QueryGradientShare {
  static_assert(Tile::rotates_dq ? Tile::q_rows == 64 : Tile::q_rows == 64 * Tile::consumers);

  ANNULUS_FUNCTION static constexpr int first_row(int group) { return Tile::rotates_dq ? 0 : group * 64; }
};

/// A consumer warp's side: 16 rows of its warpgroup's share.
template <class T, class Tile>
class QueryGradient : public QueryGradientShare<Tile> {
  using Share = QueryGradientShare<Tile>;
  using Memory = BackwardSharedMemory<Tile>;

 public:
  __device__ __forceinline__ QueryGradient(const BackwardParameters& p, const Memory& memory, int group)
      : p_(p), memory_(memory) {
    const int thread = static_cast<int>(threadIdx.x) % warpgroup, lane = thread % 32;
    const int row = Share::first_row(group) + thread / 32 * 16 + lane / 4;
    // Odd rows have groups of eight columns in another order (put): so the rows that a store serves at once
    // lie in different banks.
    const int chunk = (lane % 4 / 2) ^ (row % 8) ^ (row % 2 * 4);
    address_ = memory.gradient(0) + row * 128 + chunk * 16 + lane % 2 * 8;
  }

  /// Hands over 64 rows of a warpgroup to the warp of this stage.
  template <int stages>
  __device__ __forceinline__ void put(float (&r)[Tile::head_dim / 2], const PipelineState<stages>& at) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool odd_row = lane / 4 % 2 != 0;
    if constexpr (!scaled_probabilities<T>) {
#pragma unroll
      for (int i = 0; i < Tile::head_dim / 2; ++i) r[i] *= p_.dq_factor;
    }
    if constexpr (Tile::gradient_stages > 1) {
      wait(memory_.gradient_empty(at.stage), at.parity ^ 1);
    } else {
      wait(memory_.gradient_empty(0), parity_ ^ 1);
      parity_ ^= 1;
    }
    const auto start = static_cast<std::uint32_t>(recomputed(address_));
#pragma unroll
    for (int box = 0; box < Tile::gradient_boxes; ++box) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // row, and the one 8 further
          const int one = 4 * (box * 4 + j) + 2 * half, other = one + 8;
          const std::uint32_t to =
              memory_.gradient(at.stage) - memory_.gradient(0) + box * box_bytes + half * 1024;
          store_shared(to + (start ^ j * 32),
                       odd_row ? make_float2(r[other], r[other + 1]) : make_float2(r[one], r[one + 1]));
          store_shared(to + (start ^ (j + 2) * 32),
                       odd_row ? make_float2(r[one], r[one + 1]) : make_float2(r[other], r[other + 1]));
        }
      }
    }
    fence_shared_for_engines();
    __syncwarp();
    if (lane == 0) arrive(memory_.gradient_full(at.stage));
  }

 private:
  static constexpr int box_bytes = Memory::gradient_box;

  const BackwardParameters& p_;
  const Memory& memory_;
  int address_;  ///< of this lane's first pair
  int parity_ = 0;
};

/// The warp that has dQ of every other query tile, those of `stage`, added to device memory. There are two:
/// while one waits until its additions are done, the other waits for its semaphore.
template <class Tile, bool lists>
__device__ __forceinline__ void accumulate_query_gradients(const BackwardParameters& p,
                                                           const BackwardSharedMemory<Tile>& memory,
                                                           int stage) {
  using Share = QueryGradientShare<Tile>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int parity = 0, next_stage = 0;
  for (int n = 0;; ++n) {
    const WorkTile work = memory.work().get(n);
    if (work.head < 0) return;
    const auto [batch, kv_head, dilation_class] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    const int q_class = p.classes.queries_of(dilation_class);
    for_each_query_tile<lists>(p, work, kv_head, [&](const TileIterator<true>& cursor, int head, bool) {
      const bool other = next_stage != stage;
      next_stage ^= 1;
      if (other) return;
      int* semaphore = nullptr;
      if (p.dq_semaphores != nullptr) {
        semaphore = p.dq_semaphores +
                    ((batch * p.heads + head) * std::int64_t{p.classes.count} + q_class) * p.q_tiles +
                    cursor.tile();
        while (load_acquire(semaphore) != work.tile) {
        }
        fence_device_for_engines();
      }
      wait(memory.gradient_full(stage), parity);
      parity ^= 1;
      if (lane == 0) {
#pragma unroll
        for (int box = 0; box < Tile::gradient_boxes; ++box) {
          const int column = box * gradient_box_columns, row = cursor.tile() * Tile::q_rows;
          const std::uint32_t from = memory.gradient(stage) + box * BackwardSharedMemory<Tile>::gradient_box;
          const ClassMap dq = p.dq_maps.of_class(q_class);
          if (TileRun::first(cursor.how())) {
            dq.store(from, column, row, head, batch);
          } else {
            dq.add(from, column, row, head, batch);
          }
        }
        stores_commit();
        stores_wait_for_reads();
        arrive(memory.gradient_empty(stage));
        if (semaphore != nullptr) {
          stores_wait();
          store_release(semaphore, cursor.next_own_tile());
        }
      }
      __syncwarp();
    });
  }
}

}  // namespace annulus::attention::hopper
