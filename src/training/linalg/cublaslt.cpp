#include <cublasLt.h>

#include <algorithm>
#include <annulus/base/error.hpp>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/kokkos/memory/memory.hpp"
#include "training/linalg/device.hpp"
#include "training/linalg/host.hpp"
#include "training/linalg/stream_contexts.hpp"

namespace annulus::linalg::detail {
namespace {

constexpr std::size_t workspace_bytes = cublaslt_workspace_bytes;

void check(cublasStatus_t status, const char* what) {
  require(status == CUBLAS_STATUS_SUCCESS, "matmul: cuBLASLt: {} failed: {}", what,
          cublasLtGetStatusString(status));
}

template <auto destroy>
struct Destroy {
  void operator()(auto* handle) const { destroy(handle); }
};
using Handle = std::unique_ptr<cublasLtContext, Destroy<cublasLtDestroy>>;
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t data_type(DType type) {
  return type == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}
cublasOperation_t operation(Op op) {
  return op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T;
}

// All that the choice of an algorithm depends on.
struct Shape {
  struct MatrixShape {
    std::int64_t rows = 0, columns = 0, stride = 0;
    DType type = DType::f32;
    std::uint32_t alignment = 0;  // bytes: a power of two up to 256

    explicit MatrixShape(const DeviceMatrix& m)
        : rows(m.rows), columns(m.columns), stride(m.stride), type(m.type) {
      const auto address = reinterpret_cast<std::uintptr_t>(m.data) | 256u;
      alignment = static_cast<std::uint32_t>(address & (~address + 1));
    }
    auto operator<=>(const MatrixShape&) const = default;
  };
  Op op_a, op_b;
  bool addend, in_place;
  MatrixShape a, b, c, d;
  auto operator<=>(const Shape&) const = default;

  std::string text() const { return product_text(op_a, a, op_b, b, d); }
};

// cuBLASLt counts by columns: a row-major matrix is its transpose there. So D' = op(B)' · op(A)' is asked
// for, with the factors exchanged and their operations kept.
class MatmulPlan {
 public:
  MatmulPlan(cublasLtHandle_t handle, const Shape& shape)
      : description_(describe(shape)),
        left_(layout(shape.b)),
        right_(layout(shape.a)),
        addend_(layout(shape.c)),
        product_(layout(shape.d)) {
    cublasLtMatmulPreference_t raw = nullptr;
    check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
    const Preference preference(raw);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Parts of a sum are added in fp32 and in a fixed order, never in the GEMM's own type.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b.alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a.alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.c.alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.d.alignment);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, description_.get(), left_.get(), right_.get(), addend_.get(),
                                       product_.get(), raw, 1, &result, &found);
    require(status == CUBLAS_STATUS_SUCCESS && found == 1,
            "matmul: cuBLASLt has no algorithm for {}: {}; matrices whose addresses and rows are multiples "
            "of 16 bytes are always taken",
            shape.text(),
            status == CUBLAS_STATUS_SUCCESS ? "none was found" : cublasLtGetStatusString(status));
    algorithm_ = result.algo;
  }

  cublasStatus_t run(cublasLtHandle_t handle, cudaStream_t stream, void* workspace, const Gemm& gemm,
                     const DeviceMatrices& m) const {
    return cublasLtMatmul(handle, description_.get(), &gemm.alpha, m.b.data, left_.get(), m.a.data,
                          right_.get(), &gemm.beta, m.c.data, addend_.get(), m.d.data, product_.get(),
                          &algorithm_, workspace, workspace_bytes, stream);
  }

 private:
  static Description describe(const Shape& shape) {
    cublasLtMatmulDesc_t raw = nullptr;
    // fp32 factors too are multiplied as fp32: COMPUTE_32F_FAST_TF32 is another type.
    check(cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    Description description(raw);
    const cublasOperation_t left = operation(shape.op_b), right = operation(shape.op_a);
    check(cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof(left)),
          "cublasLtMatmulDescSetAttribute");
    check(cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof(right)),
          "cublasLtMatmulDescSetAttribute");
    return description;
  }
  static Layout layout(const Shape::MatrixShape& m) {
    cublasLtMatrixLayout_t raw = nullptr;
    check(cublasLtMatrixLayoutCreate(&raw, data_type(m.type), static_cast<std::uint64_t>(m.columns),
                                     static_cast<std::uint64_t>(m.rows), m.stride),
          "cublasLtMatrixLayoutCreate");
    return Layout(raw);
  }

  Description description_;
  Layout left_, right_, addend_, product_;
  cublasLtMatmulAlgo_t algorithm_{};
};

// What belongs to one stream.
class Context {
 public:
  // The memory belongs to the default instance, which lasts; `exec` may end before Kokkos does.
  explicit Context(const Kokkos::Cuda&)
      : workspace_(Owned<Array1<std::uint8_t, Kokkos::Cuda>>::uninitialized(
            Kokkos::Cuda(), MemoryCategory::workspace, "annulus::linalg::cublaslt", workspace_bytes)) {
    Kokkos::Cuda().fence("annulus::linalg: workspace is there for other streams");
    cublasLtHandle_t raw = nullptr;
    check(cublasLtCreate(&raw), "cublasLtCreate");
    handle_.reset(raw);
  }
  cublasLtHandle_t handle() const { return handle_.get(); }
  void* workspace() const { return workspace_.view().data(); }
  const MatmulPlan& plan(const Shape& shape) {
    auto at = plans_.find(shape);
    if (at == plans_.end()) at = plans_.emplace(shape, MatmulPlan(handle(), shape)).first;
    return at->second;
  }

 private:
  Owned<Array1<std::uint8_t, Kokkos::Cuda>> workspace_;
  Handle handle_;
  std::map<Shape, MatmulPlan> plans_;
};

}  // namespace

void multiply_on_stream(const Kokkos::Cuda& exec, const Gemm& gemm, const DeviceMatrices& m) {
  const Shape shape{gemm.op_a,
                    gemm.op_b,
                    gemm.beta != 0.0f,
                    m.c.data == m.d.data,
                    Shape::MatrixShape(m.a),
                    Shape::MatrixShape(m.b),
                    Shape::MatrixShape(m.c),
                    Shape::MatrixShape(m.d)};
  const std::lock_guard lock(stream_contexts_mutex);
  const cudaError_t device = cudaSetDevice(exec.cuda_device());  // threads start with device 0
  require(device == cudaSuccess, "matmul: device {} cannot be used: {}", exec.cuda_device(),
          cudaGetErrorString(device));
  Context& context = context_of<Context>(exec);
  const cublasStatus_t status =
      context.plan(shape).run(context.handle(), exec.cuda_stream(), context.workspace(), gemm, m);
  require(status == CUBLAS_STATUS_SUCCESS, "matmul: cuBLASLt refused {}: {}", shape.text(),
          cublasLtGetStatusString(status));
}

}  // namespace annulus::linalg::detail
