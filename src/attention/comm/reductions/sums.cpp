#include <annulus/attention/comm/sums.hpp>

#include "base/nearest.hpp"

namespace annulus::comm {

Sums parse_sums(std::string_view name, std::string_view field) {
  constexpr std::string_view sums_names[] = {"rank-order", "native"};  // in the order of Sums
  return static_cast<Sums>(place_of_name(name, sums_names, field));
}

}  // namespace annulus::comm
