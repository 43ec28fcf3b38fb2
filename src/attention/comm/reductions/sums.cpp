#include <annulus/attention/comm/sums.hpp>

#include "base/nearest.hpp"

namespace annulus::comm {

namespace {

constexpr std::string_view sums_names[] = {"rank-order", "native"};  // in the order of Sums

}  // namespace

std::string_view name_of(Sums sums) {
  return sums_names[static_cast<std::size_t>(sums)];
}

Sums parse_sums(std::string_view name, std::string_view field) {
  return static_cast<Sums>(place_of_name(name, sums_names, field));
}

}  // namespace annulus::comm
