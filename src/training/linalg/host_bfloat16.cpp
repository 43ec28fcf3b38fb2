#include <algorithm>
#include <utility>

#include "base/kokkos/memory/memory.hpp"
#include "training/linalg/host.hpp"

namespace annulus::linalg::detail {
namespace {

template <class T>
using Matrix = Array2<T, HostExec>;
using Range = std::pair<std::int64_t, std::int64_t>;

// fp32 copies of a part of A and of B, and the part of the product where that is not fp32 itself.
struct Panels {
  Owned<Array1<float, HostExec>> a, b, product;

  /// Makes room for the panels of a product.
  void reserve(const HostExec& exec, const ProductSize& product_size) {
    const PanelSizes sizes = panel_sizes(product_size);
    for (const auto& [memory, elements] :
         {std::pair(&a, sizes.a), std::pair(&b, sizes.b), std::pair(&product, sizes.product)}) {
      if (static_cast<std::int64_t>(memory->view().extent(0)) >= elements) continue;
      *memory = {};
      *memory = Owned<Array1<float, HostExec>>::uninitialized(exec, MemoryCategory::workspace,
                                                              "annulus::linalg::panel", elements);
    }
  }
};

// Kept from GEMM to GEMM. Ranks that are threads have some each: what a GEMM finds there does not
// depend on the others' pace.
Panels& panels_of_thread() {
  thread_local Panels panels;
  // Arrays of the thread that ends Kokkos would live on after it.
  [[maybe_unused]] static const bool hooked =
      (Kokkos::push_finalize_hook([] { panels_of_thread() = {}; }), true);
  return panels;
}

template <class Body>
void for_each_row(const char* label, const HostExec& exec, std::size_t rows, const Body& body) {
  Kokkos::parallel_for(label, Kokkos::RangePolicy<HostExec, Kokkos::IndexType<std::size_t>>(exec, 0, rows),
                       body);
}

// The part of op(matrix) with these rows and columns, in fp32 and stored as `matrix` is.
Matrix<const float> widened(const HostExec& exec, const Owned<Array1<float, HostExec>>& memory, Op op,
                            const Matrix<const bfloat16>& matrix, Range rows, Range columns) {
  if (op == Op::transpose) std::swap(rows, columns);
  const Matrix<const bfloat16> from = Kokkos::subview(matrix, rows, columns);
  const Matrix<float> to((*memory).data(), from.extent(0), from.extent(1));
  const std::size_t width = from.extent(1);
  for_each_row("annulus::linalg::widen", exec, from.extent(0), [=](std::size_t i) {
    const bfloat16* const source = &from(i, 0);
    float* const target = &to(i, 0);
    for (std::size_t j = 0; j < width; ++j) target[j] = source[j];
  });
  return to;
}

// d = product + beta · c, rounded
void round(const HostExec& exec, const Matrix<const float>& product, float beta,
           const Matrix<const bfloat16>& c, const Matrix<bfloat16>& d) {
  const std::size_t width = d.extent(1);
  for_each_row("annulus::linalg::round", exec, d.extent(0), [=](std::size_t i) {
    const float* const sum = &product(i, 0);
    bfloat16* const target = &d(i, 0);
    if (beta == 0.0f) {
      for (std::size_t j = 0; j < width; ++j) target[j] = bfloat16(sum[j]);
    } else {
      const bfloat16* const addend = &c(i, 0);
      for (std::size_t j = 0; j < width; ++j) target[j] = bfloat16(sum[j] + beta * addend[j]);
    }
  });
}

template <class Body>
void for_each_panel(std::size_t extent, const Body& body) {
  const auto end = static_cast<std::int64_t>(extent);
  for (std::int64_t begin = 0; begin < end; begin += panel_size)
    body(Range(begin, std::min(begin + panel_size, end)));
}

}  // namespace

template <class TC>
void multiply(const HostExec& exec, const Gemm& gemm, const Matrix<const bfloat16>& a,
              const Matrix<const bfloat16>& b, const Matrix<const TC>& c, const Matrix<TC>& d) {
  const Op op_a = gemm.op_a, op_b = gemm.op_b;
  const float beta = gemm.beta;
  Panels& panels = panels_of_thread();
  const std::size_t terms = op_a == Op::none ? a.extent(1) : a.extent(0);
  panels.reserve(exec, {static_cast<std::int64_t>(d.extent(0)), static_cast<std::int64_t>(d.extent(1)),
                        static_cast<std::int64_t>(terms), std::is_same_v<TC, float>});
  for_each_panel(d.extent(0), [&](Range rows) {
    for_each_panel(d.extent(1), [&](Range columns) {
      const Matrix<const TC> c_part =
          beta == 0.0f ? Matrix<const TC>() : Matrix<const TC>(Kokkos::subview(c, rows, columns));
      const Matrix<TC> d_part = Kokkos::subview(d, rows, columns);
      const auto sum_over_terms = [&](const Matrix<float>& sum, float first_beta,
                                      const Matrix<const float>& first_c) {
        for_each_panel(terms, [&](Range range) {
          const auto left = widened(exec, panels.a, op_a, a, rows, range);
          const auto right = widened(exec, panels.b, op_b, b, range, columns);
          const bool first = range.first == 0;
          Gemm part = gemm;
          part.beta = first ? first_beta : 1.0f;
          multiply(exec, part, left, right, first ? first_c : Matrix<const float>(sum), sum);
        });
      };
      if constexpr (std::is_same_v<TC, float>) {
        sum_over_terms(d_part, beta, c_part);
      } else {
        const Matrix<float> sum((*panels.product).data(), d_part.extent(0), d_part.extent(1));
        sum_over_terms(sum, 0.0f, {});
        round(exec, sum, beta, c_part, d_part);
      }
    });
  });
  exec.fence("annulus::linalg::matmul: the panels are free");
}

template void multiply<float>(const HostExec&, const Gemm&, const Matrix<const bfloat16>&,
                              const Matrix<const bfloat16>&, const Matrix<const float>&,
                              const Matrix<float>&);
template void multiply<bfloat16>(const HostExec&, const Gemm&, const Matrix<const bfloat16>&,
                                 const Matrix<const bfloat16>&, const Matrix<const bfloat16>&,
                                 const Matrix<bfloat16>&);

}  // namespace annulus::linalg::detail
