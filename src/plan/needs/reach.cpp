#include "plan/needs/reach.hpp"

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::plan {

namespace {

int wrapped(int place, int size) {
  return (place % size + size) % size;
}

std::int64_t hops(const std::vector<Span>& spans) {
  std::int64_t sum = 0;
  for (const Span& span : spans) sum += span.last;
  return sum;
}

}  // namespace

Reach::Reach(const Problem& problem, Side travelling, int group_size)
    : meetings_(problem), travelling_(travelling), group_size_(group_size) {
  ANNULUS_ASSERT(group_size_ > 0 && meetings_.ranks() % group_size_ == 0);
  own_group_ = turn(places_in_groups(0), inner_ways_.front(),
                    [this](int owner, const Way& way) { return inner_route(owner, 0, way); });
  const auto group_needs = [this](int owner, Hops hops) {
    return any(owner, all_groups().ranks(owner / group_size_, hops));
  };
  outer_ = turn(hops_with_any(meetings_.ranks(), groups(), group_needs), outer_way_,
                [this](int owner, const Way& way) { return outer_route(owner, way); });
  for (int outer = 1; outer <= outer_way_.last; ++outer) {
    inner_ways_.push_back(way_through(places_in_groups(outer), inner_ways_.front().direction));
  }
}

// --- Places ------------------------------------------------------------------------------------------------

int Reach::turned(int rank, Hop hop, int sign) const {
  const int group = wrapped(rank / group_size_ + sign * outer_way_.place(hop.outer), groups());
  const int place = wrapped(rank % group_size_ + sign * inner_way(hop.outer).place(hop.inner), group_size_);
  return group * group_size_ + place;
}

Reach::Circle Reach::group(int owner, int outer) const {
  const int group = wrapped(owner / group_size_ + outer_way_.place(outer), groups());
  return {group * group_size_, group_size_, 1};
}

Reach::Route Reach::inner_route(int owner, int outer, const Way& way) const {
  return {group(owner, outer), owner % group_size_, &way};
}

Reach::Route Reach::outer_route(int owner, const Way& way) const {
  return {all_groups(), owner / group_size_, &way};
}

std::array<RankRange, 2> Reach::Circle::ranks(int place, Hops hops) const {
  const int low = wrapped(place + hops.first, size), count = hops.last - hops.first + 1;
  const auto run = [this](int begin, int end) {
    return RankRange{start + begin * width, start + end * width};
  };
  if (low + count <= size) return {run(low, low + count), {}};
  return {run(low, size), run(0, low + count - size)};
}

std::array<RankRange, 2> Reach::Route::ranks(Hops hops) const {
  if (hops.last < hops.first) return {};
  const int near = way->place(hops.first), far = way->place(hops.last);
  return circle.ranks(place, {std::min(near, far), std::max(near, far)});
}

// --- Ways --------------------------------------------------------------------------------------------------

std::vector<bool> Reach::places_in_groups(int outer) const {
  return hops_with_any(meetings_.ranks(), group_size_, [&](int owner, Hops hops) {
    const bool comes = outer == 0 || outer <= outer_[static_cast<std::size_t>(owner)].last;
    return comes && any(owner, group(owner, outer).ranks(owner % group_size_, hops));
  });
}

Reach::Way Reach::way_through(const std::vector<bool>& places, int direction) {
  const int size = static_cast<int>(places.size());
  Way way;
  way.direction = direction;
  for (int distance = 1; distance < size; ++distance) {
    if (places[static_cast<std::size_t>(wrapped(direction * distance, size))])
      way.distances.push_back(distance);
  }
  way.last = static_cast<int>(way.distances.size()) - 1;
  if (way.last == 0 && !places.front()) way.last = -1;
  return way;
}

template <class RouteOf>
std::vector<Span> Reach::turn(const std::vector<bool>& places, Way& way, const RouteOf& route_of) const {
  const auto spans_on = [&](const Way& taken) {
    std::vector<Span> spans;
    for (int owner = 0; owner < meetings_.ranks(); ++owner)
      spans.push_back(span(owner, route_of(owner, taken)));
    return spans;
  };
  way = way_through(places, 1);
  std::vector<Span> upwards = spans_on(way);
  Way other = way_through(places, -1);
  std::vector<Span> downwards = spans_on(other);
  if (hops(upwards) <= hops(downwards)) return upwards;
  way = std::move(other);
  return downwards;
}

// --- Needs -------------------------------------------------------------------------------------------------

bool Reach::any(int owner, const std::array<RankRange, 2>& ranks) const {
  return meetings_.any(travelling_, owner, ranks[0]) || meetings_.any(travelling_, owner, ranks[1]);
}

RowRange Reach::rows(int owner, const std::array<RankRange, 2>& ranks) const {
  return hull(meetings_.rows(travelling_, owner, ranks[0]), meetings_.rows(travelling_, owner, ranks[1]));
}

Span Reach::span(int owner, const Route& route) const {
  const auto needed = [&](int first, int last) { return any(owner, route.ranks({first, last})); };
  const int farthest = route.way->last;
  Span span;
  span.last = farthest >= 0 && needed(farthest, farthest) ? farthest : -1;
  // Somebody needs the shard at or behind `last`, nobody at `behind` or later.
  for (int behind = farthest; behind - span.last > 1;) {
    const int middle = span.last + (behind - span.last) / 2;
    (needed(middle, farthest) ? span.last : behind) = middle;
  }
  if (span.last <= 0) return span;
  span.first = needed(1, 1) ? 1 : span.last;
  // Somebody needs the shard at or before `first`, nobody at foreign hops up to `before`.
  for (int before = 0; span.first - before > 1;) {
    const int middle = before + (span.first - before) / 2;
    (needed(1, middle) ? span.first : before) = middle;
  }
  return span;
}

Span Reach::inner(int owner, int outer) const {
  if (outer == 0) return own_group_[static_cast<std::size_t>(owner)];
  if (outer > outer_[static_cast<std::size_t>(owner)].last) return {};
  return span(owner, inner_route(owner, outer, inner_way(outer)));
}

bool Reach::needs(int owner, Hop hop) const {
  const int rank = rank_at(owner, hop);
  return travelling_ == Side::query ? meetings_.any(owner, rank) : meetings_.any(rank, owner);
}

bool Reach::group_needs(int owner, int outer) const {
  return any(owner, outer_route(owner, outer_way_).ranks({outer, outer}));
}

RowRange Reach::inner_rows(int owner, int outer, Hops ranks) const {
  if (!meetings_.cuts()) return meetings_.all_rows(owner);
  return rows(owner, inner_route(owner, outer, inner_way(outer)).ranks(ranks));
}

RowRange Reach::outer_rows(int owner, Hops groups) const {
  if (!meetings_.cuts()) return meetings_.all_rows(owner);
  return rows(owner, outer_route(owner, outer_way_).ranks(groups));
}

}  // namespace annulus::plan
