#include <annulus/model/recompute.hpp>

#include <annulus/base/error.hpp>

namespace annulus::model {

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::full:
      return "full";
    case Recompute::selective:
      return "selective";
  }
  return "unknown";
}

Recompute parse_recompute(std::string_view name, std::string_view field) {
  for (const Recompute recompute : {Recompute::none, Recompute::full, Recompute::selective}) {
    if (name_of(recompute) == name) return recompute;
  }
  fail("{} '{}' is unknown; known are none, full and selective", field, name);
}

}  // namespace annulus::model
