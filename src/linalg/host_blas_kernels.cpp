#include <cblas.h>

#include <annulus/linalg/host_blas.hpp>

namespace annulus::linalg {

std::string host_blas_kernels() {
  return std::string("OpenBLAS ") + openblas_get_corename();
}

}  // namespace annulus::linalg
