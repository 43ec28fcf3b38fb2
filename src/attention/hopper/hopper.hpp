#pragma once

#include <annulus/attention/local.hpp>
#include <concepts>

#include "attention/gpu/views.hpp"

/// The kernels for Hopper's tensor cores (Kernel::hopper): wgmma products, tiles by the copy engine (TMA),
/// warpgroups that copy and warpgroups that compute (FlashAttention-3). bfloat16 and float16 on GPUs of
/// compute capability 9.0, head_dim 64 and 128, any position maps, grouped heads, numbers of rows and
/// strides; all masks but dilation and block lists. P and dS are rounded to the inputs' type before they are
/// multiplied, as every tensor-core kernel does. Sums have a fixed order unless KernelOptions frees that of
/// dQ.
///
/// Arguments as in local.hpp, checked by the caller; no extent is 0. Rows of queries that have LSE = −inf
/// send no gradients, but their q and d_out are read and must be finite.
namespace annulus::attention::hopper {

/// What the kernel takes, for messages.
inline constexpr const char* limits =
    "bf16 and f16, head_dim 64 and 128, a positive scale, rows that start at multiples of 16 bytes, masks "
    "without dilation and blocks, and NVIDIA GPUs of compute capability 9.0 (H100, H200)";

/// Whether this process' GPU is one of Hopper's.
bool runs_here();

/// Whether the kernel takes these operands, together with the other arrays of (rows, head_dim), on a GPU for
/// it.
template <class T, class Exec, class... Views>
bool applies(const Operands<T, Exec>& in, const Views&... others) {
  if constexpr (std::same_as<T, float>) {
    return false;
  } else {
    // Rows are counted in int; heads are y of a grid.
    constexpr std::size_t most_rows = 1u << 30, most_heads = 65535;
    const auto fits = [](const auto& view) { return gpu::aligned(view, 16); };
    return (in.q.extent(3) == 64 || in.q.extent(3) == 128) && in.scale > 0.0f &&
           in.q.extent(2) <= most_rows && in.k.extent(2) <= most_rows &&
           in.q.extent(0) * in.q.extent(1) <= most_heads && in.mask.dilation <= 1 &&
           in.mask.block_row_starts == nullptr && fits(in.q) && fits(in.k) && fits(in.v) &&
           (fits(others) && ...);
  }
}

template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
             const Strided3<float, Exec>& lse, const KernelOptions& options);

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<const T, Exec>& d_out,
              const Strided3<const float, Exec>& lse, const Strided3<const float, Exec>& d,
              const Strided4<float, Exec>& dq, const Strided4<float, Exec>& dk,
              const Strided4<float, Exec>& dv, const KernelOptions& options);

}  // namespace annulus::attention::hopper
