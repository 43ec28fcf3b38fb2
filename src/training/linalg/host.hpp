#pragma once

#include <algorithm>

#include "training/linalg/matmul.hpp"

/// GEMMs of the host. All take what matmul has checked: sizes that fit, nothing empty, alpha other than 0.
namespace annulus::linalg::detail {

/// Through Kokkos Kernels and BLAS.
void multiply(const HostExec& exec, const Gemm& gemm, const Array2<const float, HostExec>& a,
              const Array2<const float, HostExec>& b, const Array2<const float, HostExec>& c,
              const Array2<float, HostExec>& d);

/// Through fp32 panels, for processors without arithmetic on bfloat16. TC is float or bfloat16.
template <class TC>
void multiply(const HostExec& exec, const Gemm& gemm, const Array2<const bfloat16, HostExec>& a,
              const Array2<const bfloat16, HostExec>& b, const Array2<const TC, HostExec>& c,
              const Array2<TC, HostExec>& d);

/// Rows, columns and terms of a panel of the host: large enough that widening costs little beside the
/// product.
inline constexpr std::int64_t panel_size = 1024;

/// fp32 elements of the panels of a product, whose factors are bfloat16.
struct PanelSizes {
  std::int64_t a = 0, b = 0, product = 0;
};
inline PanelSizes panel_sizes(const ProductSize& size) {
  const auto part = [](std::int64_t extent) { return std::min(extent, panel_size); };
  return {part(size.m) * part(size.k), part(size.k) * part(size.n),
          size.fp32_result ? 0 : part(size.m) * part(size.n)};
}

/// Workspace of cuBLASLt for each stream: what NVIDIA recommends for Hopper.
inline constexpr std::size_t cublaslt_workspace_bytes = std::size_t{32} << 20;

}  // namespace annulus::linalg::detail
