#include "prediction/emulator/spin.hpp"

#include <Kokkos_Core.hpp>
#include <chrono>
#include <cstdint>
#include <sstream>
#include <thread>

#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "base/kokkos/gpu_runtime.hpp"

namespace annulus::emulator {

#ifdef KOKKOS_ENABLE_CUDA

namespace spin_detail {  // named: device compilers want kernels to have linkage

__device__ inline std::uint64_t nanoseconds() {
  std::uint64_t time = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

/// One thread a block; the shared memory that it is started with keeps everybody else off the
/// SM.
__global__ void spin(std::uint64_t duration) {
  const std::uint64_t start = nanoseconds();
  while (nanoseconds() - start < duration) __nanosleep(200);
}

}  // namespace spin_detail

namespace {

/// Starts spinning on a stream.
class Spinner {
 public:
  explicit Spinner(int free_sms) {
    int device = 0, sms = 0;
    ANNULUS_GPU_CALL(GetDevice, &device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    blocks_ = sms - free_sms;
    require(blocks_ > 0, "the synthetic kernel leaves {} SMs free, but the device has {}: leave fewer",
            free_sms, sms);
    ANNULUS_GPU_CALL(FuncSetAttribute, spin_detail::spin, cudaFuncAttributeMaxDynamicSharedMemorySize,
                     bytes_);
  }
  void operator()(void* stream, double seconds) const {
    spin_detail::spin<<<static_cast<unsigned>(blocks_), 1, static_cast<std::size_t>(bytes_),
                        static_cast<cudaStream_t>(stream)>>>(static_cast<std::uint64_t>(1e9 * seconds));
    detail::require_gpu(cudaGetLastError(), "the spinning kernel");
  }

 private:
  int blocks_ = 0, bytes_ = 0;
};

}  // namespace

#endif

Spin parse_spin(const std::string& text, const std::string& field) {
  std::istringstream stream(text);
  double forward = 0, backward = 0;
  char comma = 0;
  const bool read = static_cast<bool>(stream >> forward >> comma >> backward) && comma == ',' &&
                    stream.peek() == std::istringstream::traits_type::eof();
  constexpr double least = 1e-6, most = 1e6;  // beyond them a clock does not count the time
  require(read && forward >= least && backward >= least && forward <= most && backward <= most,
          "{} '{}': give the TFLOP/s of the forward and of the backward pass, as in 600,530", field, text);
  return {1e12 * forward, 1e12 * backward, 0};
}

std::function<void(const executor::LocalWork&)> spinning_kernel(const Spin& spin, const plan::Problem& of) {
  require(spin.free_sms >= 0, "the synthetic kernel leaves {} SMs free: give 0 or more", spin.free_sms);
  plan::Problem problem = of;
  problem.batch = 1;  // LocalWork counts the pairs of the whole batch
#ifdef KOKKOS_ENABLE_CUDA
  const Spinner on_device(spin.free_sms);
#endif
  return [=](const executor::LocalWork& work) {
    const double rate = work.pass == plan::Pass::forward ? spin.forward : spin.backward;
    const double seconds = simulator::flops(problem, work.pass, work.pairs) / rate;
    if (work.queue == nullptr || work.queue->is_host()) {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      return;
    }
#ifdef KOKKOS_ENABLE_CUDA
    on_device(work.queue->stream(), seconds);
#else
    fail("there is no synthetic kernel for kernels of this device: compute");
#endif
  };
}

}  // namespace annulus::emulator
