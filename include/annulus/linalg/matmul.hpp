#pragma once

#include <annulus/core/tensor.hpp>

/// Dense matrix products behind one interface: Kokkos Kernels over BLAS on the host.
namespace annulus::linalg {

enum class Op : std::uint8_t { none, transpose };

/// C = alpha · op(A) · op(B) + beta · C, row-major. With beta = 0, C is not read. Rows may be padded (a
/// subview of columns of a wider array), the last index is contiguous. Sizes: op(A) (m, k), op(B) (k, n), C
/// (m, n); an Error names the sizes when they do not fit. Empty products are fine. C must not overlap A or B.
/// Threads of one process may call it at the same time. Instantiated for HostExec and float.
template <class Exec, class T>
void matmul(const Exec& exec, Op op_a, Op op_b, float alpha, const Array2<const T, Exec>& a,
            const Array2<const T, Exec>& b, float beta, const Array2<T, Exec>& c);

}  // namespace annulus::linalg
