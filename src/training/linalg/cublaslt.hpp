#pragma once

#include <annulus/base/dtype.hpp>

#include "training/linalg/matmul.hpp"

/// GEMMs on NVIDIA GPUs.
namespace annulus::linalg::detail {

/// A row-major matrix on the device.
struct DeviceMatrix {
  void* data = nullptr;
  std::int64_t rows = 0, columns = 0, stride = 0;  ///< stride: elements from a row to the next
  DType type = DType::f32;

  DeviceMatrix() = default;
  template <class T>
  explicit DeviceMatrix(const Array2<T, Kokkos::Cuda>& view)
      : data(const_cast<std::remove_const_t<T>*>(view.data())),
        rows(static_cast<std::int64_t>(view.extent(0))),
        columns(static_cast<std::int64_t>(view.extent(1))),
        stride(static_cast<std::int64_t>(view.stride(0))),
        type(dtype_of<std::remove_const_t<T>>) {}
};

struct DeviceMatrices {
  DeviceMatrix a, b, c, d;
};

/// D = alpha · op(A) · op(B) + beta · C through cuBLASLt, summed in fp32. A stream has a handle, a workspace
/// and the algorithms of the GEMMs that it has seen; cuBLASLt's heuristics choose them by shape, without a
/// trial, so that every run takes the same. All three go when an OwnInstance ends with the stream. Sizes fit,
/// nothing is empty. Throws Error naming the product when cuBLASLt refuses.
void multiply_on_stream(const Kokkos::Cuda& exec, const Gemm& gemm, const DeviceMatrices& matrices);

template <class T, class TC>
void multiply(const Kokkos::Cuda& exec, const Gemm& gemm, const Array2<const T, Kokkos::Cuda>& a,
              const Array2<const T, Kokkos::Cuda>& b, const Array2<const TC, Kokkos::Cuda>& c,
              const Array2<TC, Kokkos::Cuda>& d) {
  const DeviceMatrix product(d);
  multiply_on_stream(exec, gemm,
                     {.a = DeviceMatrix(a),
                      .b = DeviceMatrix(b),
                      .c = gemm.beta == 0.0f ? product : DeviceMatrix(c),
                      .d = product});
}

}  // namespace annulus::linalg::detail
