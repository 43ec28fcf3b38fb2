#include "compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_map>

namespace annulus::diff {

namespace {

constexpr std::uint64_t slab_elements = std::uint64_t{1} << 20;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Calls `use(a, b, slab)` with the values of one slab after the other.
template <class Use>
void for_values(const TensorFile& a, const TensorFile& b, const TensorDifference& of, const Use& use) {
  io::for_slabs(of.a->extents, slab_elements,
                [&](const io::Hyperslab& slab) { use(a.read(*of.a, slab), b.read(*of.b, slab), slab); });
}

/// Index of an element of a slab.
io::Extents index_of(const io::Hyperslab& slab, std::uint64_t element) {
  io::Extents index = slab.start;
  for (std::size_t d = index.size(); d-- > 0; element /= slab.count[d]) index[d] += element % slab.count[d];
  return index;
}

double error_of(double a, double b, double size) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return infinity;
  return std::abs(a - b) / std::max({std::abs(a), std::abs(b), size});
}

void compare_values(const TensorFile& a, const TensorFile& b, TensorDifference& difference) {
  double squares_a = 0, squares_b = 0, squares = 0, count = 0;
  for_values(a, b, difference, [&](const auto& x, const auto& y, const io::Hyperslab&) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!std::isfinite(x[i]) || !std::isfinite(y[i])) continue;
      squares_a += x[i] * x[i];
      squares_b += y[i] * y[i];
      squares += (x[i] - y[i]) * (x[i] - y[i]);
      ++count;
    }
  });
  const double norm = std::sqrt(std::max(squares_a, squares_b));
  const double size = count > 0 ? norm / std::sqrt(count) : 0;
  difference.norm_error = squares > 0 ? std::sqrt(squares) / norm : 0;
  difference.worst.assign(difference.a->extents.size(), 0);
  for_values(a, b, difference, [&](const auto& x, const auto& y, const io::Hyperslab& slab) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = error_of(x[i], y[i], size);
      if (error == 0) continue;
      ++difference.unequal;
      if (error > difference.tolerance) ++difference.beyond;
      const double distance = std::isinf(error) ? infinity : std::abs(x[i] - y[i]);
      difference.largest_distance = std::max(difference.largest_distance, distance);
      if (error <= difference.largest_error) continue;
      difference.largest_error = error;
      difference.worst = index_of(slab, i);
      difference.worst_a = x[i];
      difference.worst_b = y[i];
    }
  });
}

bool is_integer(DType type) {
  return default_tolerance(type) == 0;
}

/// A tensor in fp32 that came of a computation in bf16 is as uncertain as that.
double tolerance_of(const TensorFile& a, const TensorFile& b, const TensorDifference& difference) {
  if (is_integer(difference.a->dtype) && is_integer(difference.b->dtype)) return 0;
  double tolerance = std::max(default_tolerance(difference.a->dtype), default_tolerance(difference.b->dtype));
  for (const TensorFile* file : {&a, &b})
    if (file->dtype()) tolerance = std::max(tolerance, default_tolerance(*file->dtype()));
  return tolerance;
}

}  // namespace

double default_tolerance(DType dtype) {
  return dtype == DType::f64    ? 1e-10
         : dtype == DType::f32  ? 1e-3
         : dtype == DType::f16  ? 1e-1
         : dtype == DType::bf16 ? 5e-1
                                : 0;
}

std::vector<TensorDifference> compare(const TensorFile& a, const TensorFile& b,
                                      std::optional<double> tolerance) {
  // Tensors of B alone come behind the one of A that they follow in B: those of place 0 before all of A.
  std::unordered_map<std::string_view, std::size_t> places;
  for (const DumpedTensor& tensor : a.tensors()) places.emplace(tensor.name, places.size() + 1);
  std::vector<std::vector<const DumpedTensor*>> only_in_b(a.tensors().size() + 1);
  std::vector<const DumpedTensor*> in_b(a.tensors().size() + 1);
  std::size_t after = 0;
  for (const DumpedTensor& tensor : b.tensors()) {
    const auto known = places.find(tensor.name);
    if (known == places.end())
      only_in_b[after].push_back(&tensor);
    else
      in_b[after = known->second] = &tensor;
  }
  std::vector<TensorDifference> all;
  for (std::size_t place = 0; place < in_b.size(); ++place) {
    if (place > 0) {
      const DumpedTensor& tensor = a.tensors()[place - 1];
      all.push_back({.name = tensor.name, .a = &tensor, .b = in_b[place]});
    }
    for (const DumpedTensor* tensor : only_in_b[place]) all.push_back({.name = tensor->name, .b = tensor});
  }
  for (TensorDifference& difference : all) {
    if (!difference.has_values()) continue;
    difference.tolerance = tolerance.value_or(tolerance_of(a, b, difference));
    compare_values(a, b, difference);
  }
  return all;
}

}  // namespace annulus::diff
