#include "plan/reach.hpp"

#include <annulus/base/error.hpp>

namespace annulus::plan {

Reach::Reach(const Problem& problem, Side travelling) : problem_(problem), travelling_(travelling) {
  for (int rank = 0; rank < problem.ranks(); ++rank) shards_.push_back(problem.shard(rank));
  find_hops(1);
  const std::int64_t upwards = total_hops();
  find_hops(-1);
  if (upwards <= total_hops()) find_hops(1);
}

void Reach::find_hops(int direction) {
  direction_ = direction;
  first_.clear();
  last_.clear();
  for (int owner = 0; owner < ranks(); ++owner) {
    int last = ranks() - 1;
    while (last >= 0 && !has_pairs(owner, last)) --last;
    int first = 0;
    if (last > 0) {
      first = 1;
      while (!has_pairs(owner, first)) ++first;  // ends at `last`
    }
    first_.push_back(first);
    last_.push_back(last);
  }
}

std::int64_t Reach::total_hops() const {
  std::int64_t hops = 0;
  for (const int last : last_) hops += last;
  return hops;
}

bool Reach::needs(int owner, int hop) const {
  ANNULUS_ASSERT(hop >= 0);
  const int end = last(owner);
  if (hop >= end) return hop == end;
  if (hop > 0 && hop <= first(owner)) return hop == first(owner);
  return has_pairs(owner, hop);
}

bool Reach::has_pairs(int owner, int hop) const {
  const PositionMap& traveller = shards_[static_cast<std::size_t>(owner)];
  const PositionMap& host = shards_[static_cast<std::size_t>(rank_at(owner, hop))];
  if (traveller.empty() || host.empty()) return false;
  return travelling_ == Side::query ? !problem_.mask.is_empty(traveller, host)
                                    : !problem_.mask.is_empty(host, traveller);
}

}  // namespace annulus::plan
