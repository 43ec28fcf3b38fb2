#pragma once

#include <fmt/format.h>

#include <annulus/base/dtype.hpp>
#include <string>

#include "training/linalg/matmul.hpp"

/// GEMMs on GPUs.
namespace annulus::linalg::detail {

/// A row-major matrix on the device.
struct DeviceMatrix {
  void* data = nullptr;
  std::int64_t rows = 0, columns = 0, stride = 0;  ///< stride: elements from a row to the next
  DType type = DType::f32;

  DeviceMatrix() = default;
  template <class T>
  explicit DeviceMatrix(const Array2<T, DeviceExec>& view)
      : data(const_cast<std::remove_const_t<T>*>(view.data())),
        rows(static_cast<std::int64_t>(view.extent(0))),
        columns(static_cast<std::int64_t>(view.extent(1))),
        stride(static_cast<std::int64_t>(view.stride(0))),
        type(dtype_of<std::remove_const_t<T>>) {}
};

struct DeviceMatrices {
  DeviceMatrix a, b, c, d;
};

/// The product as messages name it; `Matrix` has rows, columns, stride and type.
template <class Matrix>
std::string product_text(Op op_a, const Matrix& a, Op op_b, const Matrix& b, const Matrix& d) {
  const auto factor = [](const Matrix& m, Op op) {
    return fmt::format("{} x {} {}{} (row stride {})", m.rows, m.columns, name_of(m.type),
                       op == Op::none ? "" : ", transposed", m.stride);
  };
  return fmt::format("the product of {} and {} into {}", factor(a, op_a), factor(b, op_b),
                     factor(d, Op::none));
}

/// D = alpha · op(A) · op(B) + beta · C through the vendor's library, summed in fp32: cuBLASLt on NVIDIA's
/// GPUs, hipBLAS on AMD's. Sizes fit, nothing is empty. What is kept for the stream goes when an OwnInstance
/// ends with it. Throws Error naming the product when the library refuses.
///
/// With cuBLASLt a stream has a handle, a workspace and the algorithms of the GEMMs that it has seen; the
/// heuristics choose them by shape, without a trial, so that every run takes the same. With hipBLAS it has a
/// handle, which keeps from sums by atomic operations.
void multiply_on_stream(const DeviceExec& exec, const Gemm& gemm, const DeviceMatrices& matrices);

template <class T, class TC>
void multiply(const DeviceExec& exec, const Gemm& gemm, const Array2<const T, DeviceExec>& a,
              const Array2<const T, DeviceExec>& b, const Array2<const TC, DeviceExec>& c,
              const Array2<TC, DeviceExec>& d) {
  const DeviceMatrix product(d);
  multiply_on_stream(exec, gemm,
                     {.a = DeviceMatrix(a),
                      .b = DeviceMatrix(b),
                      .c = gemm.beta == 0.0f ? product : DeviceMatrix(c),
                      .d = product});
}

}  // namespace annulus::linalg::detail
