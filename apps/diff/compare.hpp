#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tensor_file.hpp"

namespace annulus::diff {

/// How far a tensor of one file is from that of the same name in the other one.
///
/// The error of an element is |a − b| over the largest of |a|, |b| and the root mean square of the tensor
/// (the larger of the two files'): elements that are small beside their neighbours are what cancellation
/// leaves, and are as uncertain as those. Elements that are not finite must be the same; their error is
/// infinite otherwise. Single elements of a large tensor are far off by rounding alone, the tensor as a whole
/// is not: so its norm's error may be a tenth of an element's.
struct TensorDifference {
  std::string name{};
  const DumpedTensor* a = nullptr;  ///< null: this file lacks the tensor
  const DumpedTensor* b = nullptr;

  // Where both are there and have one shape.
  double tolerance = 0;
  double largest_distance = 0;  ///< max |a − b|
  double largest_error = 0;
  double norm_error = 0;                  ///< ‖a − b‖ / max(‖a‖, ‖b‖), finite elements
  std::uint64_t unequal = 0, beyond = 0;  ///< elements that differ, those that differ beyond the tolerance
  io::Extents worst{};                    ///< index of the element of the largest error
  double worst_a = 0, worst_b = 0;

  bool has_values() const { return a != nullptr && b != nullptr && a->extents == b->extents; }
  double norm_tolerance() const { return tolerance / 10; }
  bool passed() const { return has_values() && largest_error <= tolerance && norm_error <= norm_tolerance(); }
};

/// What elements may differ by where nothing else was asked for: what rounding of this type makes of the same
/// computation in another order. 0 for integers.
double default_tolerance(DType dtype);

/// All tensors of both files, in the order of `a`'s computation; those that only `b` has follow the one that
/// goes before them there. Reads a few MiB at a time.
std::vector<TensorDifference> compare(const TensorFile& a, const TensorFile& b,
                                      std::optional<double> tolerance);

}  // namespace annulus::diff
