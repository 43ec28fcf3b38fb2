#include "training/linalg/matmul.hpp"

#include <annulus/base/error.hpp>

#include "base/kokkos/instantiate.hpp"
#include "training/linalg/host.hpp"
#include "training/linalg/portable.hpp"
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)
#define ANNULUS_LINALG_HAS_DEVICE_LIBRARY
#include "training/linalg/device.hpp"
#endif

namespace annulus::linalg {
namespace {

struct Sizes {
  std::size_t rows, columns;
};

template <class ViewType>
Sizes sizes_of(Op op, const ViewType& matrix) {
  const Sizes stored{matrix.extent(0), matrix.extent(1)};
  return op == Op::none ? stored : Sizes{stored.columns, stored.rows};
}

// d = factor · c
template <class Exec, class TC>
void scale(const Exec& exec, float factor, const Array2<const TC, Exec>& c, const Array2<TC, Exec>& d) {
  Kokkos::parallel_for(
      "annulus::linalg::scale",
      Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>, Kokkos::IndexType<std::int64_t>>(
          exec, {0, 0}, {static_cast<std::int64_t>(d.extent(0)), static_cast<std::int64_t>(d.extent(1))}),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t j) {
        d(i, j) = factor == 0.0f ? TC(0.0f) : TC(factor * static_cast<float>(c(i, j)));
      });
}

}  // namespace

template <class Exec, class T, class TC>
void matmul(const Exec& exec, const Gemm& gemm, const Array2<const T, Exec>& a,
            const Array2<const T, Exec>& b, const Array2<const TC, Exec>& c, const Array2<TC, Exec>& d) {
  const Sizes left = sizes_of(gemm.op_a, a), right = sizes_of(gemm.op_b, b), product = sizes_of(Op::none, d);
  require(left.columns == right.rows && product.rows == left.rows && product.columns == right.columns,
          "matmul: C '{}' ({} x {}) cannot be op(A) '{}' ({} x {}) times op(B) '{}' ({} x {}): pass matrices "
          "and transposes whose sizes fit",
          d.label(), product.rows, product.columns, a.label(), left.rows, left.columns, b.label(), right.rows,
          right.columns);
  require(gemm.beta == 0.0f || (c.extent(0) == product.rows && c.extent(1) == product.columns),
          "matmul: the addend '{}' ({} x {}) must have the sizes of the product '{}' ({} x {})", c.label(),
          c.extent(0), c.extent(1), d.label(), product.rows, product.columns);
  if (d.size() == 0) return;
  if (left.columns == 0 || gemm.alpha == 0.0f) {
    scale<Exec, TC>(exec, gemm.beta, c, d);
  } else if constexpr (std::is_same_v<Exec, HostExec>) {
    detail::multiply(exec, gemm, a, b, c, d);
#ifdef ANNULUS_LINALG_HAS_DEVICE_LIBRARY
  } else if constexpr (std::is_same_v<Exec, DeviceExec>) {
    detail::multiply(exec, gemm, a, b, c, d);
#endif
  } else {
    detail::multiply_portably<Exec, T, TC>(exec, gemm, a, b, c, d);
  }
}

template <class Exec, class T, class TC>
void matmul(const Exec& exec, const Gemm& gemm, const Array2<const T, Exec>& a,
            const Array2<const T, Exec>& b, const Array2<TC, Exec>& c) {
  matmul<Exec, T, TC>(exec, gemm, a, b, c, c);
}

#define ANNULUS_LINALG_INSTANTIATE(Exec, T, TC)                                                  \
  template void matmul<Exec, T, TC>(const Exec&, const Gemm&, const Array2<const T, Exec>&,      \
                                    const Array2<const T, Exec>&, const Array2<TC, Exec>&);      \
  template void matmul<Exec, T, TC>(const Exec&, const Gemm&, const Array2<const T, Exec>&,      \
                                    const Array2<const T, Exec>&, const Array2<const TC, Exec>&, \
                                    const Array2<TC, Exec>&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_LINALG_INSTANTIATE, float, float)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_LINALG_INSTANTIATE, bfloat16, bfloat16)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_LINALG_INSTANTIATE, bfloat16, float)

}  // namespace annulus::linalg
