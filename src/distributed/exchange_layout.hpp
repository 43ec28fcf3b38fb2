#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "distributed/slots.hpp"

namespace annulus::distributed {

/// What the exchange slots and staging buffers of a rank need, by pass: no transfer is under way from one
/// pass to the next.
struct PassCapacity {
  Capacity forward;  ///< of the first positions alone, too
  Capacity backward;

  Capacity& of(plan::Pass pass) { return pass == plan::Pass::forward ? forward : backward; }
  /// Enough for both.
  void cover(const PassCapacity& other) {
    forward.cover(other.forward);
    backward.cover(other.backward);
  }
};

/// Where they lie in one block of memory. What one pass alone needs lies where the other has something else.
struct ExchangeLayout {
  std::array<std::vector<std::size_t>, plan::tensor_count> slots;  ///< bytes from the start
  std::vector<std::size_t> staging;                                ///< likewise
  std::size_t bytes = 0;                                           ///< of the block
};
ExchangeLayout exchange_layout(const PassCapacity& capacity, DType activation);

}  // namespace annulus::distributed
