#include "training/optimizer/muon.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
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

template <class Exec, class From, class To>
void scale(const Exec& exec, float factor, const From* from, To* to, std::int64_t size) {
  Kokkos::parallel_for(
      "annulus::optimizer::muon_scale", ElementRange<Exec>(exec, 0, size),
      KOKKOS_LAMBDA(const std::int64_t i) { to[i] = static_cast<To>(factor * static_cast<float>(from[i])); });
}

}  // namespace

void MuonSizes::include(std::int64_t rows, std::int64_t columns) {
  elements = std::max(elements, rows * columns);
  side = std::max(side, std::min(rows, columns));
}

ArrayTable muon_arrays(const MuonSizes& sizes, DType products) {
  ArrayTable table;
  const auto add = [&](const char* label, std::int64_t elements, std::int64_t element) {
    table.push_back({label, MemoryCategory::workspace, elements, element});
  };
  const std::int64_t square = sizes.side * sizes.side * size_of(products);
  if (sizes.elements == 0) return table;
  add("annulus::optimizer::muon_matrix", sizes.elements, sizeof(float));
  add("annulus::optimizer::muon_iterates", sizes.elements, sizeof(float));
  add("annulus::optimizer::muon_square", square, 1);
  add("annulus::optimizer::muon_polynomial", square, 1);
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
      iterates_(allocate<float>(exec, arrays[1])),
      square_(allocate<std::byte>(exec, arrays[2])),
      polynomial_(allocate<std::byte>(exec, arrays[3])) {}

template <class Exec>
Array2<float, Exec> Orthogonalizer<Exec>::Space::matrix(std::int64_t rows, std::int64_t columns) const {
  return Array2<float, Exec>((*matrix_).data(), rows, columns);
}

template <class Exec>
template <class T>
void Orthogonalizer<Exec>::iterate(const Exec& exec, const Space& space, std::int64_t rows,
                                   std::int64_t columns, float factor) {
  using Matrix = Array2<T, Exec>;  // row-major
  using linalg::Op;
  const std::int64_t size = rows * columns, side = std::min(rows, columns);
  const bool tall = rows > columns;
  constexpr bool fp32 = std::is_same_v<T, float>;
  float* const matrix = (*space.matrix_).data();
  T* const iterates = reinterpret_cast<T*>((*space.iterates_).data());
  // Two iterates of 16 bits have the bytes of one in fp32, which has the matrix itself for the other.
  Matrix x(iterates, rows, columns),
      next(fp32 ? reinterpret_cast<T*>(matrix) : iterates + size, rows, columns);
  const Matrix square(reinterpret_cast<T*>((*space.square_).data()), side, side),
      polynomial(reinterpret_cast<T*>((*space.polynomial_).data()), side, side);
  scale(exec, factor, matrix, x.data(), size);
  for (int i = 0; i < iterations; ++i, std::swap(x, next)) {
    // A = X Xᵀ, or Xᵀ X where that is smaller.
    linalg::matmul<Exec, T, T>(
        exec, {.op_a = tall ? Op::transpose : Op::none, .op_b = tall ? Op::none : Op::transpose}, x, x,
        square);
    linalg::matmul<Exec, T, T>(exec, {.alpha = c, .beta = b}, square, square, square, polynomial);
    if (tall)
      linalg::matmul<Exec, T, T>(exec, {.beta = a}, x, polynomial, x, next);
    else
      linalg::matmul<Exec, T, T>(exec, {.beta = a}, polynomial, x, x, next);
  }
  // An odd number of iterations: in fp32 the last one writes where the matrix was.
  static_assert(iterations % 2 == 1);
  if (!fp32) scale(exec, 1.0f, x.data(), matrix, size);
}

template <class Exec>
void Orthogonalizer<Exec>::make_orthogonal(const Exec& exec, const Space& space, std::int64_t rows,
                                           std::int64_t columns) {
  const Region region("annulus::optimizer::muon");
  const std::int64_t size = rows * columns;
  auto blocks = blocks_.find(size);
  if (blocks == blocks_.end())
    blocks =
        blocks_
            .emplace(size, NormBlocks<Exec>(exec, std::array{NormRange{0, size, 0}},
                                            (size + NormBlocks<Exec>::size - 1) / NormBlocks<Exec>::size))
            .first;
  const double norm =
      norm_.measure(exec, Array1<float, Exec>((*space.matrix_).data(), size), blocks->second).norm;
  const auto factor = static_cast<float>(1.0 / (norm + least_norm));
  if (products_ == DType::bf16)
    iterate<bfloat16>(exec, space, rows, columns, factor);
  else
    iterate<float>(exec, space, rows, columns, factor);
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_CLASS, Orthogonalizer)

}  // namespace annulus::optimizer
