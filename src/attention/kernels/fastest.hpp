#pragma once

#include "attention/kernels/hopper/hopper.hpp"
#include "attention/kernels/mma/mma.hpp"

namespace annulus::attention {

/// Whether the kernel hopper is what Kernel::automatic stands for, on a GPU that it runs on. `others` are the
/// further arrays of rows.
template <class T, class Exec, class... Views>
bool hopper_is_fastest(const Operands<T, Exec>& in, const Views&... others) {
  return hopper::applies(in, others...) && !(mma::gathers_before_hopper(in) && mma::applies(in, others...));
}

}  // namespace annulus::attention
