#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

/// Which known name a user may have meant by an unknown one.
namespace annulus {

/// Levenshtein's distance. Of `given` the first hundred characters count: no known name has as many.
std::size_t edit_distance(std::string_view given, std::string_view known);

/// At so many edits a name is taken for a slip of the pen; beyond them a suggestion would mislead.
constexpr bool is_near(std::size_t distance, std::string_view given) {
  return distance <= (given.size() + 1) / 3;
}

/// "did you mean 'ring'? ", of the nearest of `known`, the first of equally near ones; empty where none is
/// near.
std::string did_you_mean(std::string_view given, std::span<const std::string_view> known);

/// The place of `given` among `known`, as of an enumeration whose values have these names. Throws Error that
/// names `field` and all that is known when it is none of them.
std::size_t place_of_name(std::string_view given, std::span<const std::string_view> known,
                          std::string_view field);

}  // namespace annulus
