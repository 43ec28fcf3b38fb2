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

/// Rows of `width` elements, one after the other.
template <class E>
gpu::Rows<E> dense(E* data, int heads, std::int64_t rows, int width) {
  return {data, heads * rows * width, rows * width, width};
}

/// Rows of head_dim elements, or of V's, with a gap behind each of them, which nobody may read or write.
struct RowsWithGaps {
  int head_dim, gap;

  int width() const { return head_dim + gap; }
  /// Makes gaps NaN.
  template <class E>
  void spoil(const DeviceArray<E>& array) const {
    if (gap == 0 || array.count() == 0) return;
    check(cudaMemset2D(array.data() + head_dim, width() * sizeof(E), 0xff, gap * sizeof(E),
                       array.count() / static_cast<std::size_t>(width())),
          "fill gaps");
  }
  template <class E>
  void fill_bytes(const DeviceArray<E>& array, int byte) const {
    array.fill_bytes(byte);
    spoil(array);
  }
  /// The rows without their gaps. Ends the program where something was written to a gap.
  template <class E>
  std::vector<E> host(const DeviceArray<E>& array) const {
    const std::vector<E> all = array.host();
    std::vector<E> rows;
    for (auto row = all.begin(); row != all.end(); row += width()) {
      rows.insert(rows.end(), row, row + head_dim);
      const auto* const gap_bytes = reinterpret_cast<const unsigned char*>(&*row + head_dim);
      if (std::any_of(gap_bytes, gap_bytes + gap * sizeof(E),
                      [](unsigned char byte) { return byte != 0xff; })) {
        std::fprintf(stderr, "WRONG: row %td of %d elements has something behind its end\n",
                     (row - all.begin()) / width(), head_dim);
        std::exit(1);
      }
    }
    return rows;
  }
};

}  // namespace annulus::hopper_kernels
