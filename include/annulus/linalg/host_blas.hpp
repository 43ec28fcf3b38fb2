#pragma once

#include <string>

namespace annulus::linalg {

/// The BLAS of the host and, where that is OpenBLAS, which of its kernels it has chosen for this machine's
/// CPU: "OpenBLAS SkylakeX". Machines with the same answer of OpenBLAS get the same bits from the same
/// GEMM. Another BLAS, that of an installed Kokkos Kernels, is named by its libraries.
std::string host_blas_kernels();

}  // namespace annulus::linalg
