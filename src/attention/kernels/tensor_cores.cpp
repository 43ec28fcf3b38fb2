#include "attention/kernels/tensor_cores.hpp"

#include <fmt/format.h>

#include "attention/kernels/mma/mma.hpp"

namespace annulus::attention {

std::string why_not_on_tensor_cores(DType type, int head_dim, int v_head_dim, bool built) {
  if (!built)
    return "this build has no kernels for them: build the preset cuda for NVIDIA GPUs of compute capability "
           "8.0 or newer";
  if (size_of(type) != 2)
    return fmt::format("they take 16-bit types, not {}: compute in bf16", name_of(type));
  if (v_head_dim != head_dim)
    return fmt::format(
        "none of their kernels takes head_dim {} with v_head_dim {}: the kernel hopper takes 192 "
        "with 128 in bf16, all others take equal ones",
        head_dim, v_head_dim);
  return fmt::format("none of their kernels takes head_dim {}: the kernel mma takes {}", head_dim,
                     mma::limits);
}

}  // namespace annulus::attention
