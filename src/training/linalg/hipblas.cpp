#define HIPBLAS_V2  // types of HIP itself, before hipBLAS 3 made them the only ones
#include <hipblas/hipblas.h>

#include <algorithm>
#include <annulus/base/error.hpp>
#include <limits>
#include <memory>
#include <type_traits>

#include "training/linalg/device.hpp"
#include "training/linalg/stream_contexts.hpp"

namespace annulus::linalg::detail {
namespace {

void check(hipblasStatus_t status, const char* what) {
  require(status == HIPBLAS_STATUS_SUCCESS, "matmul: hipBLAS: {} failed: {}", what,
          hipblasStatusToString(status));
}

struct Destroy {
  void operator()(void* handle) const { static_cast<void>(hipblasDestroy(handle)); }
};

/// What belongs to one stream.
class Context {
 public:
  explicit Context(const DeviceExec& exec) {
    hipblasHandle_t raw = nullptr;
    check(hipblasCreate(&raw), "hipblasCreate");
    handle_.reset(raw);
    check(hipblasSetStream(raw, gpu_stream(exec)), "hipblasSetStream");
    // Parts of a sum that are added as they come would give other bits each time.
    check(hipblasSetAtomicsMode(raw, HIPBLAS_ATOMICS_NOT_ALLOWED), "hipblasSetAtomicsMode");
  }
  hipblasHandle_t handle() const { return handle_.get(); }

 private:
  std::unique_ptr<std::remove_pointer_t<hipblasHandle_t>, Destroy> handle_;
};

hipDataType data_type(DType type) {
  return type == DType::f32 ? HIP_R_32F : HIP_R_16BF;
}
hipblasOperation_t operation(Op op) {
  return op == Op::none ? HIPBLAS_OP_N : HIPBLAS_OP_T;
}

/// hipBLAS adds to the product in place.
void copy_addend(const DeviceExec& exec, const DeviceMatrix& c, const DeviceMatrix& d) {
  const std::size_t element = size_of(d.type);
  ANNULUS_GPU_CALL(Memcpy2DAsync, d.data, static_cast<std::size_t>(d.stride) * element, c.data,
                   static_cast<std::size_t>(c.stride) * element,
                   static_cast<std::size_t>(d.columns) * element, static_cast<std::size_t>(d.rows),
                   hipMemcpyDeviceToDevice, gpu_stream(exec));
}

}  // namespace

void multiply_on_stream(const DeviceExec& exec, const Gemm& gemm, const DeviceMatrices& m) {
  const std::int64_t terms = gemm.op_a == Op::none ? m.a.columns : m.a.rows;
  const std::int64_t largest = std::max({m.d.rows, m.d.columns, terms, m.a.stride, m.b.stride, m.d.stride});
  require(largest <= std::numeric_limits<int>::max(),
          "matmul: hipBLAS counts rows and columns to {}, and {} has more: multiply a part at a time",
          std::numeric_limits<int>::max(), product_text(gemm.op_a, m.a, gemm.op_b, m.b, m.d));
  const std::lock_guard lock(stream_contexts_mutex);
  ANNULUS_GPU_CALL(SetDevice, gpu_device(exec));  // threads start with device 0
  if (gemm.beta != 0.0f && m.c.data != m.d.data) copy_addend(exec, m.c, m.d);
  // hipBLAS counts by columns: a row-major matrix is its transpose there. So D' = op(B)' · op(A)' is asked
  // for, with the factors exchanged and their operations kept.
  const auto size = [](std::int64_t extent) { return static_cast<int>(extent); };
  const hipblasStatus_t status = hipblasGemmEx(
      context_of<Context>(exec).handle(), operation(gemm.op_b), operation(gemm.op_a), size(m.d.columns),
      size(m.d.rows), size(terms), &gemm.alpha, m.b.data, data_type(m.b.type), size(m.b.stride), m.a.data,
      data_type(m.a.type), size(m.a.stride), &gemm.beta, m.d.data, data_type(m.d.type), size(m.d.stride),
      HIPBLAS_COMPUTE_32F, HIPBLAS_GEMM_DEFAULT);
  require(status == HIPBLAS_STATUS_SUCCESS, "matmul: hipBLAS refused {}: {}",
          product_text(gemm.op_a, m.a, gemm.op_b, m.b, m.d), hipblasStatusToString(status));
}

}  // namespace annulus::linalg::detail
