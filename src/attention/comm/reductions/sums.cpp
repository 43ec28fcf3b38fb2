#include <annulus/attention/comm/sums.hpp>
#include <annulus/base/error.hpp>

namespace annulus::comm {

std::string_view name_of(Sums sums) {
  return sums == Sums::native ? "native" : "rank-order";
}

Sums parse_sums(std::string_view name, std::string_view field) {
  for (const Sums sums : {Sums::rank_order, Sums::native})
    if (name_of(sums) == name) return sums;
  fail("{} '{}' is unknown; known are rank-order and native", field, name);
}

}  // namespace annulus::comm
