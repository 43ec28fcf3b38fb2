#include "plan/contents.hpp"

#include <algorithm>

namespace annulus::plan::validation {

bool Sum::add(const Contribution& contribution) {
  const auto same =
      std::ranges::equal_range(contributions_, contribution.compute, {}, &Contribution::compute);
  for (const Contribution& held : same) {
    if (overlap(held.where, contribution.where)) return false;
  }
  contributions_.insert(same.end(), contribution);
  return true;
}

Sum Sum::part(const Rectangle& where) const {
  Sum part;
  for (const Contribution& held : contributions_) {
    const Rectangle common = intersection(held.where, where);
    if (!common.empty()) part.contributions_.push_back({held.compute, common});
  }
  return part;
}

std::int64_t Sum::held(const Contribution& contribution) const {
  std::int64_t area = 0;
  for (const Contribution& held :
       std::ranges::equal_range(contributions_, contribution.compute, {}, &Contribution::compute)) {
    area += intersection(held.where, contribution.where).area();
  }
  return area;
}

bool Sum::covers(const Sum& other) const {
  return std::ranges::all_of(other.contributions_, [this](const Contribution& contribution) {
    return held(contribution) == contribution.where.area();
  });
}

const Use* Buffer::use_of(const Rectangle& where, bool landing_only) const {
  for (const Use& use : uses) {
    if (use.landing < landing_only) continue;
    if (overlap(use.where, where)) return &use;
  }
  return nullptr;
}

}  // namespace annulus::plan::validation
