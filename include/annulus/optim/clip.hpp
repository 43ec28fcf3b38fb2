#pragma once

#include <cmath>

#include <annulus/comm/communicator.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::optim {

/// What clipping found: the Euclidean norm of all gradients, and the factor that brings it down to the bound
/// (1 below it). The factor is 0 when the norm is not finite; no update should then be made.
struct Clipping {
  double norm = 0.0;
  float scale = 1.0f;

  bool finite() const { return std::isfinite(norm); }
};

/// Clipping by global norm. Gradients are not changed: the scale goes to the optimizer's step. The sum of
/// squares is formed in double from blocks of fixed size added in order, so that it does not depend on the
/// number of threads.
template <class Exec>
class GradientClipper {
 public:
  /// `max_norm` > 0, infinity to measure without clipping; else Error.
  explicit GradientClipper(double max_norm);

  /// `gradients` (elements). With a communicator they are one rank's shard, and the norm is that of all
  /// shards: a collective call with one result on every rank.
  Clipping measure(const Exec& exec, const Array1<const float, Exec>& gradients,
                   comm::Communicator* communicator = nullptr);

 private:
  double max_norm_;
  Owned<Array1<double, Exec>> sums_;  // (blocks + 1): the sum of squares of each block, and of all
};

}  // namespace annulus::optim
