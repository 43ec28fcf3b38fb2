#include <annulus/base/kokkos/device.hpp>

#include <Kokkos_Macros.hpp>

#include <annulus/base/error.hpp>

#ifdef KOKKOS_ENABLE_CUDA
#include <cuda_runtime.h>
#endif

namespace annulus {

int device_count() {
  int devices = 0;
#ifdef KOKKOS_ENABLE_CUDA
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
#endif
  return devices;
}

void require_device() {
#ifdef KOKKOS_ENABLE_CUDA
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  require(code == cudaSuccess && devices > 0,
          "this program was built for NVIDIA GPUs and finds none ({}): use a machine with a GPU and its "
          "driver, or the "
          "build of the preset cpu",
          code == cudaSuccess ? "no device" : cudaGetErrorString(code));
#endif
}

}  // namespace annulus
