#include <fmt/format.h>

#include <KokkosBlas2_gemv.hpp>
#include <KokkosBlas3_gemm.hpp>
#include <algorithm>
#include <annulus/base/error.hpp>
#include <array>
#include <cstdlib>
#include <limits>

#include "training/linalg/host.hpp"

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

std::string blas_warning(std::string_view kernels, bool avx2, bool avx512) {
  constexpr auto without_avx =
      std::to_array<std::string_view>({"Core2", "Penryn", "Dunnington", "Nehalem", "Prescott"});
  constexpr std::string_view name = "OpenBLAS ";
  if (!avx2 || !kernels.starts_with(name) ||
      std::ranges::find(without_avx, kernels.substr(name.size())) == without_avx.end())
    return {};
  return fmt::format(
      "OpenBLAS does not know this processor: its kernels for {} leave AVX2 unused, and matrix products on "
      "the CPU take several times as long as they could. Set OPENBLAS_CORETYPE={} in the environment",
      kernels.substr(name.size()), avx512 ? "SkylakeX" : "Haswell");
}

std::string host_blas_warning() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (std::getenv("OPENBLAS_CORETYPE") == nullptr)
    return blas_warning(host_blas_kernels(), __builtin_cpu_supports("avx2") != 0,
                        __builtin_cpu_supports("avx512f") != 0);
#endif
  return {};
}

std::int64_t kept_memory(std::span<const ProductSize> products, DType factors, bool on_host) {
  if (!on_host) return static_cast<std::int64_t>(detail::cublaslt_workspace_bytes);
  if (factors == DType::f32) return 0;
  detail::PanelSizes most;
  for (const ProductSize& size : products) {
    const detail::PanelSizes panels = detail::panel_sizes(size);
    most = {std::max(most.a, panels.a), std::max(most.b, panels.b), std::max(most.product, panels.product)};
  }
  return (most.a + most.b + most.product) * static_cast<std::int64_t>(sizeof(float));
}

namespace detail {
namespace {

constexpr const char* blas_op(Op op) {
  return op == Op::none ? "N" : "T";
}

// BLAS counts in int; the offsets inside a matrix may be larger.
template <class ViewType>
void require_blas_sizes(const ViewType& matrix) {
  const std::size_t largest = std::max({matrix.extent(0), matrix.extent(1), matrix.stride(0)});
  require(largest <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
          "matmul: the matrix '{}' ({} x {}, row stride {}) has an extent beyond BLAS' 2^31 - 1: multiply it "
          "in parts",
          matrix.label(), matrix.extent(0), matrix.extent(1), matrix.stride(0));
}

}  // namespace

void multiply(const HostExec& exec, const Gemm& gemm, const Array2<const float, HostExec>& a,
              const Array2<const float, HostExec>& b, const Array2<const float, HostExec>& c,
              const Array2<float, HostExec>& d) {
  const auto& [op_a, op_b, alpha, beta] = gemm;
  require_blas_sizes(a);
  require_blas_sizes(b);
  require_blas_sizes(d);
  if (beta != 0.0f && c.data() != d.data()) Kokkos::deep_copy(exec, d, c);
  if (d.extent(1) == 1 && op_a == Op::none && op_b == Op::none) {
    // gemm would take this case for a gemv on contiguous vectors, which the column of a padded matrix is not.
    KokkosBlas::gemv(exec, "N", alpha, a, Kokkos::subview(b, Kokkos::ALL, 0), beta,
                     Kokkos::subview(d, Kokkos::ALL, 0));
  } else {
    KokkosBlas::gemm(exec, blas_op(op_a), blas_op(op_b), alpha, a, b, beta, d);
  }
}

}  // namespace detail
}  // namespace annulus::linalg
