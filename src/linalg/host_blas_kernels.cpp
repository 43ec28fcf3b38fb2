#include <annulus/linalg/host_blas.hpp>

#ifdef ANNULUS_BLAS_IS_OPENBLAS
extern "C" char* openblas_get_corename(void);
#endif

namespace annulus::linalg {

std::string host_blas_kernels() {
#ifdef ANNULUS_BLAS_IS_OPENBLAS
  return std::string("OpenBLAS ") + openblas_get_corename();
#else
  return ANNULUS_BLAS_NAME;
#endif
}

}  // namespace annulus::linalg
