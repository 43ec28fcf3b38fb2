#include <KokkosBlas2_gemv.hpp>
#include <KokkosBlas3_gemm.hpp>
#include <algorithm>
#include <annulus/base/error.hpp>
#include <annulus/linalg/matmul.hpp>
#include <limits>

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

template <class Exec, class T>
void scale(const Exec& exec, float factor, const Array2<T, Exec>& c) {
  Kokkos::parallel_for(
      "annulus::linalg::scale",
      Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>, Kokkos::IndexType<std::int64_t>>(
          exec, {0, 0}, {static_cast<std::int64_t>(c.extent(0)), static_cast<std::int64_t>(c.extent(1))}),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t j) {
        c(i, j) = factor == 0.0f ? T(0) : T(factor * c(i, j));
      });
}

}  // namespace

template <class Exec, class T>
void matmul(const Exec& exec, Op op_a, Op op_b, float alpha, const Array2<const T, Exec>& a,
            const Array2<const T, Exec>& b, float beta, const Array2<T, Exec>& c) {
  const Sizes left = sizes_of(op_a, a), right = sizes_of(op_b, b), product = sizes_of(Op::none, c);
  require(
      left.columns == right.rows && product.rows == left.rows && product.columns == right.columns,
      "matmul: C '{}' ({} x {}) cannot be op(A) '{}' ({} x {}) times op(B) '{}' ({} x {}): pass matrices and "
      "transposes whose sizes fit",
      c.label(), product.rows, product.columns, a.label(), left.rows, left.columns, b.label(), right.rows,
      right.columns);
  require_blas_sizes(a);
  require_blas_sizes(b);
  require_blas_sizes(c);
  if (c.size() == 0) return;
  if (left.columns == 0 || alpha == 0.0f) {
    scale<Exec, T>(exec, beta, c);
  } else if (product.columns == 1 && op_a == Op::none && op_b == Op::none) {
    // gemm would take this case for a gemv on contiguous vectors, which the column of a padded matrix is not.
    KokkosBlas::gemv(exec, "N", alpha, a, Kokkos::subview(b, Kokkos::ALL, 0), beta,
                     Kokkos::subview(c, Kokkos::ALL, 0));
  } else {
    KokkosBlas::gemm(exec, blas_op(op_a), blas_op(op_b), alpha, a, b, beta, c);
  }
}

template void matmul(const HostExec&, Op, Op, float, const Array2<const float, HostExec>&,
                     const Array2<const float, HostExec>&, float, const Array2<float, HostExec>&);

}  // namespace annulus::linalg
