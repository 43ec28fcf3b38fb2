#include <annulus/model/recompute.hpp>

#include <array>

#include <annulus/base/error.hpp>

namespace annulus::model {

namespace {
constexpr std::array policies = {Recompute::none, Recompute::full, Recompute::selective,
                                 Recompute::sequence_selective};
}

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::full:
      return "full";
    case Recompute::selective:
      return "selective";
    case Recompute::sequence_selective:
      return "sequence-selective";
  }
  return "unknown";
}

Recompute parse_recompute(std::string_view name, std::string_view field) {
  for (const Recompute recompute : policies) {
    if (name_of(recompute) == name) return recompute;
  }
  fail("{} '{}' is unknown; known are none, full, selective and sequence-selective", field, name);
}

}  // namespace annulus::model
