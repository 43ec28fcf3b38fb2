#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "attention/kernels/gpu/problem.hpp"
#include "base/splitmix.hpp"

/// Memory of the device.
namespace annulus::hopper_kernels {

using namespace annulus::attention;

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class E>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<std::size_t>(count * sizeof(E), 256)), "allocate");
  }
  explicit DeviceArray(const std::vector<E>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), count_ * sizeof(E), cudaMemcpyHostToDevice), "copy");
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  E* data() const { return data_; }
  std::size_t count() const { return count_; }
  void fill_bytes(int byte) const { check(cudaMemset(data_, byte, count_ * sizeof(E)), "fill"); }
  std::vector<E> host() const {
    std::vector<E> values(count_);
    check(cudaMemcpy(values.data(), data_, count_ * sizeof(E), cudaMemcpyDeviceToHost), "copy");
    return values;
  }

 private:
  E* data_ = nullptr;
  std::size_t count_;
};

__device__ float normal(std::size_t i, unsigned seed) {
  const std::uint64_t x = mix_bits((i + 1) * splitmix_step + seed * 0xd1b54a32d192ed03ull);
  const float u = (static_cast<unsigned>(x) + 0.5f) * 2.3283064e-10f,
              v = static_cast<float>(x >> 32) * 2.3283064e-10f;
  return sqrtf(-2.0f * logf(fminf(u, 0.9999999f))) * cosf(6.2831853f * v);
}

template <class E>
__global__ void fill_normal_kernel(E* data, std::size_t count, unsigned seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    data[i] = static_cast<E>(normal(i, seed));
}
template <class E>
void fill_normal(const DeviceArray<E>& array, unsigned seed) {
  fill_normal_kernel<<<1024, 256>>>(array.data(), array.count(), seed);
  check(cudaGetLastError(), "fill");
}

template <class E>
gpu::Rows<E> dense(E* data, int heads, std::int64_t rows, int width) {
  return {data, heads * rows * width, rows * width, width};
}

}  // namespace annulus::hopper_kernels
