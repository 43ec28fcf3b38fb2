#pragma once

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

/// Workspace of cuBLASLt for each stream: what NVIDIA recommends for Hopper.
inline constexpr std::size_t cublaslt_workspace_bytes = std::size_t{32} << 20;

}  // namespace annulus::linalg::detail
