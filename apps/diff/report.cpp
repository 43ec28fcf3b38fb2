#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/printable.hpp"

namespace annulus::diff {

namespace {

std::string shape_of(const DumpedTensor& tensor) {
  return fmt::format("({})", fmt::join(tensor.extents, ", "));
}

/// "head 3, token 17, channel 5"
std::string place_of(const TensorDifference& d) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < d.worst.size(); ++i)
    parts.push_back(fmt::format("{} {}", printable(d.a->dimensions[i]), d.worst[i]));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string types_of(const TensorDifference& d) {
  const auto a = name_of(d.a->dtype), b = name_of(d.b->dtype);
  return a == b ? std::string(a) : fmt::format("{} and {}", a, b);
}

/// Why the values of a tensor cannot be compared.
std::string unlike(const TensorDifference& d) {
  if (d.a == nullptr) return "missing in A";
  if (d.b == nullptr) return "missing in B";
  return fmt::format("of shape {} in A and {} in B", shape_of(*d.a), shape_of(*d.b));
}

std::string describe(const TensorDifference& d) {
  if (!d.has_values()) return fmt::format("'{}' is {}", printable(d.name), unlike(d));
  std::string text = fmt::format("'{}' differs: {} {}, {} of {} elements beyond the tolerance {:g}\n",
                                 printable(d.name), types_of(d), shape_of(*d.a), d.beyond,
                                 io::Hyperslab{{}, d.a->extents}.elements(), d.tolerance);
  text += fmt::format("  largest error {:.3g}, max |a − b| {:.3g}, ‖a − b‖ / max(‖a‖, ‖b‖) {:.3g}\n",
                      d.largest_error, d.largest_distance, d.norm_error);
  if (d.norm_error > d.norm_tolerance())
    text += fmt::format("  the norm's error is beyond {:g}, a tenth of the tolerance\n", d.norm_tolerance());
  text += fmt::format("  worst at {}: a = {:.9g}, b = {:.9g}", place_of(d), d.worst_a, d.worst_b);
  return text;
}

}  // namespace

std::string verdict(const std::vector<TensorDifference>& differences) {
  const auto failed = [](const TensorDifference& d) { return !d.passed(); };
  const auto first = std::find_if(differences.begin(), differences.end(), failed);
  if (first == differences.end()) {
    const auto same = std::count_if(differences.begin(), differences.end(),
                                    [](const TensorDifference& d) { return d.unequal == 0; });
    return fmt::format("{} tensors are equal within their tolerance, {} of them bit for bit\n",
                       differences.size(), same);
  }
  std::string text = fmt::format("the first tensor that differs, {} of {} in order of computation:\n{}\n",
                                 first - differences.begin() + 1, differences.size(), describe(*first));
  const auto more = std::count_if(first + 1, differences.end(), failed);
  if (more > 0) text += fmt::format("{} more differ\n", more);
  for (auto d = first + 1; d != differences.end(); ++d)
    if (!d->has_values()) text += fmt::format("  '{}' is {}\n", printable(d->name), unlike(*d));
  return text;
}

std::string table(const std::vector<TensorDifference>& differences) {
  std::size_t width = 6;
  for (const TensorDifference& d : differences) width = std::max(width, printable(d.name).size());
  std::string text = fmt::format("{:{}}  {:>10}  {:>10}  {:>10}  {:>9}  {}\n", "tensor", width, "max |a−b|",
                                 "error", "of norm", "tolerance", "worst at");
  for (const TensorDifference& d : differences) {
    if (!d.has_values()) {
      text += fmt::format("{:{}}  {}  DIFFERS\n", printable(d.name), width, unlike(d));
      continue;
    }
    text += fmt::format("{:{}}  {:>10.3g}  {:>10.3g}  {:>10.3g}  {:>9.3g}  {}{}\n", printable(d.name), width,
                        d.largest_distance, d.largest_error, d.norm_error, d.tolerance,
                        d.unequal == 0 ? "equal" : place_of(d), d.passed() ? "" : "  DIFFERS");
  }
  return text;
}

}  // namespace annulus::diff
