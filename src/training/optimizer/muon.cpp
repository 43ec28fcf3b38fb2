#include "training/optimizer/muon.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/range.hpp"
#include "training/linalg/matmul.hpp"

namespace annulus::optimizer {

namespace {

constexpr int iterations = 5;
constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
constexpr double least_norm = 1e-7;

template <class Exec>
void scale(const Exec& exec, float factor, const Array1<const float, Exec>& from,
           const Array1<float, Exec>& to) {
  Kokkos::parallel_for(
      "annulus::optimizer::muon_scale", ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(to.extent(0))),
      KOKKOS_LAMBDA(const std::int64_t i) { to(i) = factor * from(i); });
}

}  // namespace

void MuonSizes::include(std::int64_t rows, std::int64_t columns) {
  elements = std::max(elements, rows * columns);
  side = std::max(side, std::min(rows, columns));
}

ArrayTable muon_arrays(const MuonSizes& sizes) {
  ArrayTable table;
  const auto add = [&](const char* label, std::int64_t elements) {
    table.push_back({label, MemoryCategory::workspace, elements, sizeof(float)});
  };
  if (sizes.elements == 0) return table;
  add("annulus::optimizer::muon_matrix", sizes.elements);
  add("annulus::optimizer::muon_iterate", sizes.elements);
  add("annulus::optimizer::muon_square", sizes.side * sizes.side);
  add("annulus::optimizer::muon_polynomial", sizes.side * sizes.side);
  return table;
}

double muon_flops(std::int64_t rows, std::int64_t columns) {
  const double side = double(std::min(rows, columns)), elements = double(rows) * double(columns);
  return iterations * (4 * side * elements + 2 * side * side * side);
}

double muon_scale(std::int64_t rows, std::int64_t columns) {
  return 0.2 * std::sqrt(double(std::max(rows, columns)));
}

template <class Exec>
Orthogonalizer<Exec>::Space::Space(const Exec& exec, const ArrayTable& arrays)
    : matrix_(allocate<float>(exec, arrays[0])),
      other_(allocate<float>(exec, arrays[1])),
      square_(allocate<float>(exec, arrays[2])),
      polynomial_(allocate<float>(exec, arrays[3])) {}

template <class Exec>
Array2<float, Exec> Orthogonalizer<Exec>::Space::matrix(std::int64_t rows, std::int64_t columns) const {
  return Array2<float, Exec>((*matrix_).data(), rows, columns);
}

template <class Exec>
void Orthogonalizer<Exec>::make_orthogonal(const Exec& exec, const Space& space, std::int64_t rows,
                                           std::int64_t columns) {
  const Region region("annulus::optimizer::muon");
  using Matrix = Array2<float, Exec>;  // row-major
  using linalg::Op;
  const std::int64_t size = rows * columns, side = std::min(rows, columns);
  const bool tall = rows > columns;
  Matrix x((*space.other_).data(), rows, columns), next = space.matrix(rows, columns);
  const Matrix square((*space.square_).data(), side, side),
      polynomial((*space.polynomial_).data(), side, side);
  auto blocks = blocks_.find(size);
  if (blocks == blocks_.end())
    blocks =
        blocks_
            .emplace(size, NormBlocks<Exec>(exec, std::array{NormRange{0, size, 0}},
                                            (size + NormBlocks<Exec>::size - 1) / NormBlocks<Exec>::size))
            .first;
  const Array1<float, Exec> flat(next.data(), size);
  const double norm = norm_.measure(exec, flat, blocks->second).norm;
  scale<Exec>(exec, static_cast<float>(1.0 / (norm + least_norm)), flat, Array1<float, Exec>(x.data(), size));
  // An odd number of iterations: the last one writes where the matrix was.
  static_assert(iterations % 2 == 1);
  for (int i = 0; i < iterations; ++i, std::swap(x, next)) {
    // A = X Xᵀ, or Xᵀ X where that is smaller.
    linalg::matmul<Exec, float, float>(
        exec, {.op_a = tall ? Op::transpose : Op::none, .op_b = tall ? Op::none : Op::transpose}, x, x,
        square);
    linalg::matmul<Exec, float, float>(exec, {.alpha = c, .beta = b}, square, square, square, polynomial);
    if (tall)
      linalg::matmul<Exec, float, float>(exec, {.beta = a}, x, polynomial, x, next);
    else
      linalg::matmul<Exec, float, float>(exec, {.beta = a}, polynomial, x, x, next);
  }
}

#define ANNULUS_INSTANTIATE(Exec) template class Orthogonalizer<Exec>;
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::optimizer
