#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <cstddef>

namespace annulus::comm {

/// What the ranks contribute to a reduction: those of the other ranks lie one behind the other from `first`
/// on, `stride` bytes apart, with or without a place for that of `rank`, which is at `own`.
struct Contributions {
  const std::byte* first = nullptr;
  std::size_t stride = 0;
  int ranks = 0, rank = 0;
  const std::byte* own = nullptr;
  bool own_has_place = false;

  KOKKOS_FUNCTION const std::byte* of(int r) const {
    if (r == rank) return own;
    return first + static_cast<std::size_t>(r > rank && !own_has_place ? r - 1 : r) * stride;
  }
};

/// out[i] = (x0[i] op x1[i]) op (x2[i] op x3[i]) op …, in the order of Communicator::all_reduce, for i <
/// count; memory of the queue's instance, on which it is enqueued. `out` may be one of the contributions.
/// bf16 and f16 are combined in f32 and rounded once; integer sums wrap; a NaN survives max and min. The same
/// bits on the host and on a device.
void reduce_in_order(const Queue& queue, DType type, ReduceOp op, const Contributions& all, void* out,
                     std::size_t count);

}  // namespace annulus::comm
