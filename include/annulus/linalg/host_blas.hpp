#pragma once

#include <string>

namespace annulus::linalg {

/// Which of its kernels the BLAS of the host has chosen for this machine's CPU: "OpenBLAS SkylakeX". Machines
/// with the same answer get the same bits from the same GEMM.
std::string host_blas_kernels();

}  // namespace annulus::linalg
