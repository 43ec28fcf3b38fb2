#include "attention/plan/needs/ring_routes.hpp"

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::plan {

namespace {

int wrapped(int place, int size) {
  return (place % size + size) % size;
}

std::int64_t hops(const std::vector<HopSpan>& spans) {
  std::int64_t sum = 0;
  for (const HopSpan& span : spans) sum += span.last;
  return sum;
}

}  // namespace

RingRoutes::RingRoutes(const Problem& problem, Side circulated, int inner_size)
    : shard_pairs_(problem), circulated_(circulated), inner_size_(inner_size) {
  ANNULUS_ASSERT(inner_size_ > 0 && shard_pairs_.ranks() % inner_size_ == 0);
  std::optional<int> inner_direction, outer_direction;
  if (problem.positions > 0) {
    const RingRoutes all(problem.of_all_positions(), circulated, inner_size);
    inner_direction = all.inner_ways_.front().direction;
    outer_direction = all.outer_way_.direction;
  }
  own_group_ = turn(
      places_on_inner_rings(0), inner_ways_.front(),
      [this](int owner, const Way& way) { return inner_route(owner, 0, way); }, inner_direction);
  const auto inner_ring_needs = [this](int owner, Hops hops) {
    return any(owner, outer_ring().ranks(owner / inner_size_, hops));
  };
  outer_ = turn(
      hops_with_any(shard_pairs_.ranks(), outer_size(), inner_ring_needs), outer_way_,
      [this](int owner, const Way& way) { return outer_route(owner, way); }, outer_direction);
  for (int outer = 1; outer <= outer_way_.last; ++outer) {
    inner_ways_.push_back(way_through(places_on_inner_rings(outer), inner_ways_.front().direction));
  }
}

// --- Places ------------------------------------------------------------------------------------------------

int RingRoutes::turned(int rank, Hop hop, int sign) const {
  const int group = wrapped(rank / inner_size_ + sign * outer_way_.place(hop.outer), outer_size());
  const int place = wrapped(rank % inner_size_ + sign * inner_way(hop.outer).place(hop.inner), inner_size_);
  return group * inner_size_ + place;
}

RingRoutes::Circle RingRoutes::inner_ring(int owner, int outer) const {
  const int group = wrapped(owner / inner_size_ + outer_way_.place(outer), outer_size());
  return {group * inner_size_, inner_size_, 1};
}

RingRoutes::Route RingRoutes::inner_route(int owner, int outer, const Way& way) const {
  return {inner_ring(owner, outer), owner % inner_size_, &way};
}

RingRoutes::Route RingRoutes::outer_route(int owner, const Way& way) const {
  return {outer_ring(), owner / inner_size_, &way};
}

std::array<RankRange, 2> RingRoutes::Circle::ranks(int place, Hops hops) const {
  const int low = wrapped(place + hops.first, size), count = hops.last - hops.first + 1;
  const auto run = [this](int begin, int end) {
    return RankRange{start + begin * width, start + end * width};
  };
  if (low + count <= size) return {run(low, low + count), {}};
  return {run(low, size), run(0, low + count - size)};
}

std::array<RankRange, 2> RingRoutes::Route::ranks(Hops hops) const {
  if (hops.last < hops.first) return {};
  const int near = way->place(hops.first), far = way->place(hops.last);
  return circle.ranks(place, {std::min(near, far), std::max(near, far)});
}

// --- Ways --------------------------------------------------------------------------------------------------

std::vector<bool> RingRoutes::places_on_inner_rings(int outer) const {
  return hops_with_any(shard_pairs_.ranks(), inner_size_, [&](int owner, Hops hops) {
    const bool comes = outer == 0 || outer <= outer_[static_cast<std::size_t>(owner)].last;
    return comes && any(owner, inner_ring(owner, outer).ranks(owner % inner_size_, hops));
  });
}

RingRoutes::Way RingRoutes::way_through(const std::vector<bool>& places, int direction) {
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
std::vector<HopSpan> RingRoutes::turn(const std::vector<bool>& places, Way& way, const RouteOf& route_of,
                                      std::optional<int> direction) const {
  const auto spans_on = [&](const Way& taken) {
    std::vector<HopSpan> spans;
    for (int owner = 0; owner < shard_pairs_.ranks(); ++owner)
      spans.push_back(span(owner, route_of(owner, taken)));
    return spans;
  };
  way = way_through(places, direction.value_or(1));
  if (direction) return spans_on(way);
  std::vector<HopSpan> upwards = spans_on(way);
  Way other = way_through(places, -1);
  std::vector<HopSpan> downwards = spans_on(other);
  if (hops(upwards) <= hops(downwards)) return upwards;
  way = std::move(other);
  return downwards;
}

// --- Needs -------------------------------------------------------------------------------------------------

bool RingRoutes::any(int owner, const std::array<RankRange, 2>& ranks) const {
  return shard_pairs_.any(circulated_, owner, ranks[0]) || shard_pairs_.any(circulated_, owner, ranks[1]);
}

RowRange RingRoutes::rows(int owner, const std::array<RankRange, 2>& ranks) const {
  return hull(shard_pairs_.rows(circulated_, owner, ranks[0]),
              shard_pairs_.rows(circulated_, owner, ranks[1]));
}

HopSpan RingRoutes::span(int owner, const Route& route) const {
  const auto needed = [&](int first, int last) { return any(owner, route.ranks({first, last})); };
  const int farthest = route.way->last;
  HopSpan span;
  span.last = farthest >= 0 && needed(farthest, farthest) ? farthest : -1;
  // Somebody needs the shard at or behind `last`, nobody at `behind` or later.
  for (int behind = farthest; behind - span.last > 1;) {
    const int middle = span.last + (behind - span.last) / 2;
    (needed(middle, farthest) ? span.last : behind) = middle;
  }
  if (span.last <= 0) return span;
  span.first = needed(1, 1) ? 1 : span.last;
  // Somebody needs the shard at or before `first`, nobody at remote hops up to `before`.
  for (int before = 0; span.first - before > 1;) {
    const int middle = before + (span.first - before) / 2;
    (needed(1, middle) ? span.first : before) = middle;
  }
  return span;
}

HopSpan RingRoutes::inner(int owner, int outer) const {
  if (outer == 0) return own_group_[static_cast<std::size_t>(owner)];
  if (outer > outer_[static_cast<std::size_t>(owner)].last) return {};
  return span(owner, inner_route(owner, outer, inner_way(outer)));
}

bool RingRoutes::needs(int owner, Hop hop) const {
  const int rank = rank_at(owner, hop);
  return circulated_ == Side::query ? shard_pairs_.any(owner, rank) : shard_pairs_.any(rank, owner);
}

bool RingRoutes::inner_ring_needs(int owner, int outer) const {
  return any(owner, outer_route(owner, outer_way_).ranks({outer, outer}));
}

RowRange RingRoutes::inner_rows(int owner, int outer, Hops ranks) const {
  if (!shard_pairs_.cuts()) return shard_pairs_.all_rows(owner);
  return rows(owner, inner_route(owner, outer, inner_way(outer)).ranks(ranks));
}

RowRange RingRoutes::outer_rows(int owner, Hops inner_rings) const {
  if (!shard_pairs_.cuts()) return shard_pairs_.all_rows(owner);
  return rows(owner, outer_route(owner, outer_way_).ranks(inner_rings));
}

}  // namespace annulus::plan
