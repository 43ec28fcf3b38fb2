#include "plan/reach.hpp"

#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::plan {

namespace {

std::int64_t hops(const std::vector<Span>& spans) {
  std::int64_t sum = 0;
  for (const Span& span : spans) sum += span.last;
  return sum;
}

}  // namespace

Reach::Reach(const Problem& problem, Side travelling, int group_size)
    : problem_(problem), travelling_(travelling), group_size_(group_size) {
  for (int rank = 0; rank < problem.ranks(); ++rank) shards_.push_back(problem.shard(rank));
  ANNULUS_ASSERT(group_size_ > 0 && ranks() % group_size_ == 0);
  turn_inner_rings();
  turn_outer_ring();
  inner_.resize(shards_.size());
  for (int owner = 0; owner < ranks(); ++owner) {
    for (int outer = 0; outer <= outer_[static_cast<std::size_t>(owner)].last; ++outer) {
      inner_[static_cast<std::size_t>(owner)].push_back(find_inner(owner, outer));
    }
  }
}

int Reach::turned(int rank, Hop hop, int sign) const {
  const auto wrapped = [](int place, int size) { return (place % size + size) % size; };
  const int group = wrapped(rank / group_size_ + sign * outer_direction_ * hop.outer, groups());
  return group * group_size_ + wrapped(rank % group_size_ + sign * inner_direction_ * hop.inner, group_size_);
}

template <class Needs>
Span Reach::span_of(int size, const Needs& needs) {
  Span span;
  span.last = size - 1;
  while (span.last >= 0 && !needs(span.last)) --span.last;
  if (span.last > 0) {
    span.first = 1;
    while (!needs(span.first)) ++span.first;  // ends at `last`
  }
  return span;
}

Span Reach::find_inner(int owner, int outer) const {
  return span_of(group_size_, [&](int hop) { return has_pairs(owner, {outer, hop}); });
}

void Reach::turn_inner_rings() {
  const auto hops_turning = [this](int direction) {
    inner_direction_ = direction;
    std::vector<Span> spans;
    for (int owner = 0; owner < ranks(); ++owner) spans.push_back(find_inner(owner, 0));
    return hops(spans);
  };
  const std::int64_t upwards = hops_turning(1);
  if (upwards <= hops_turning(-1)) inner_direction_ = 1;
}

void Reach::turn_outer_ring() {
  const auto spans_turning = [this](int direction) {
    outer_direction_ = direction;
    std::vector<Span> spans;
    for (int owner = 0; owner < ranks(); ++owner) {
      spans.push_back(span_of(groups(), [&](int hop) {
        int inner = 0;
        while (inner < group_size_ && !has_pairs(owner, {hop, inner})) ++inner;
        return inner < group_size_;
      }));
    }
    return spans;
  };
  std::vector<Span> downwards;
  if (groups() > 1) downwards = spans_turning(-1);
  outer_ = spans_turning(1);
  if (groups() > 1 && hops(downwards) < hops(outer_)) {
    outer_ = std::move(downwards);
    outer_direction_ = -1;
  }
}

Span Reach::inner(int owner, int outer) const {
  const std::vector<Span>& spans = inner_[static_cast<std::size_t>(owner)];
  return static_cast<std::size_t>(outer) < spans.size() ? spans[static_cast<std::size_t>(outer)] : Span{};
}

bool Reach::needs(int owner, Hop hop) const {
  ANNULUS_ASSERT(hop.inner >= 0);
  const Span span = inner(owner, hop.outer);
  if (hop.inner >= span.last) return hop.inner == span.last;
  if (hop.inner > 0 && hop.inner <= span.first) return hop.inner == span.first;
  return has_pairs(owner, hop);
}

bool Reach::has_pairs(int owner, Hop hop) const {
  const PositionMap& traveller = shards_[static_cast<std::size_t>(owner)];
  const PositionMap& host = shards_[static_cast<std::size_t>(rank_at(owner, hop))];
  if (traveller.empty() || host.empty()) return false;
  return travelling_ == Side::query ? !problem_.mask.is_empty(traveller, host)
                                    : !problem_.mask.is_empty(host, traveller);
}

}  // namespace annulus::plan
