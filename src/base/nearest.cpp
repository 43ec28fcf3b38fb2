#include "base/nearest.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus {

std::size_t edit_distance(std::string_view given, std::string_view known) {
  given = given.substr(0, 100);
  std::vector<std::size_t> row(known.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= given.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= known.size(); ++j) {
      const std::size_t replaced = diagonal + (given[i - 1] != known[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[known.size()];
}

std::string did_you_mean(std::string_view given, std::span<const std::string_view> known) {
  const auto edits = [&](std::string_view name) { return edit_distance(given, name); };
  const auto best = std::ranges::min_element(known, {}, edits);
  if (best == known.end() || !is_near(edits(*best), given)) return "";
  return fmt::format("did you mean '{}'? ", *best);
}

std::size_t place_of_name(std::string_view given, std::span<const std::string_view> known,
                          std::string_view field) {
  const auto found = std::ranges::find(known, given);
  require(found != known.end(), "{} '{}' is unknown; known are {}", field, given, fmt::join(known, ", "));
  return static_cast<std::size_t>(found - known.begin());
}

}  // namespace annulus
