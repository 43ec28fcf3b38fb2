#pragma once

#include <cstdint>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"

namespace annulus::optimizer {

/// Finds where gradients stop being finite, before a sum over ranks spreads it. A backward pass fills the
/// flat buffer from its end to its beginning, and what is not finite spreads to whatever is computed after
/// it: the last element of the buffer that is not finite is the one that came first.
template <class Exec>
class NonFinite {
 public:
  explicit NonFinite(const Exec& exec);

  /// Forgets what was found.
  void reset(const Exec& exec);
  /// Enqueues a look at `values`, the elements of the buffer from `first` on.
  void look(const Exec& exec, std::int64_t first, const Array1<const float, Exec>& values);
  /// The last element, of all that were looked at, that is not finite; −1 where all are. Waits for `exec`.
  std::int64_t last(const Exec& exec) const;

 private:
  Owned<Array1<std::int64_t, Exec>> last_;  // (1)
};

}  // namespace annulus::optimizer
