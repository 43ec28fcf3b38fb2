#pragma once

#include <string>

#include <annulus/base/dtype.hpp>

namespace annulus::attention {

/// Why no kernel on a GPU's tensor cores takes contiguous operands of this type and width, and what to do.
/// `built`: this build has such kernels. For operands that none takes.
std::string why_not_on_tensor_cores(DType type, int head_dim, int v_head_dim, bool built);

}  // namespace annulus::attention
