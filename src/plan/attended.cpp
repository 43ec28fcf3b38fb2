#include "plan/attended.hpp"

namespace annulus::plan {
namespace {

/// The smallest range of `count` rows outside of which there is nothing, where there is something in all of
/// them.
template <class NothingIn>
RowRange smallest_range(std::int64_t count, const NothingIn& nothing_in) {
  // The most rows from one end without anything in them.
  const auto search = [count](const auto& nothing_in_rows) {
    if (!nothing_in_rows(1)) return std::int64_t{0};
    std::int64_t without = 1, with = count;
    while (with - without > 1) {
      const std::int64_t middle = without + (with - without) / 2;
      (nothing_in_rows(middle) ? without : with) = middle;
    }
    return without;
  };
  const std::int64_t before = search([&](std::int64_t rows) { return nothing_in(RowRange{0, rows}); });
  const std::int64_t behind = search([&](std::int64_t rows) {
    return nothing_in(RowRange{count - rows, count});
  });
  return {before, count - behind};
}

}  // namespace

RowRange attended_keys(const Mask& mask, const PositionMap& q, const PositionMap& k) {
  if (q.empty() || k.empty() || mask.is_empty(q, k)) return {};
  return smallest_range(k.count, [&](RowRange rows) { return mask.is_empty(q, k.slice(rows)); });
}

RowRange attending_queries(const Mask& mask, const PositionMap& q, const PositionMap& k) {
  if (q.empty() || k.empty() || mask.is_empty(q, k)) return {};
  return smallest_range(q.count, [&](RowRange rows) { return mask.is_empty(q.slice(rows), k); });
}

Meetings::Meetings(const Problem& problem) : problem_(problem) {
  for (int rank = 0; rank < problem.ranks(); ++rank) shards_.push_back(problem.shard(rank));
}

bool Meetings::any(int q, int kv) const {
  return !shard(q).empty() && !shard(kv).empty() && !problem_.mask.is_empty(shard(q), shard(kv));
}

Meeting Meetings::of(int q, int kv) const {
  return {attending_queries(problem_.mask, shard(q), shard(kv)),
          attended_keys(problem_.mask, shard(q), shard(kv))};
}

bool Meetings::any_at(int hop) const {
  for (int kv = 0; kv < ranks(); ++kv) {
    if (any(turned(kv, hop), kv)) return true;
  }
  return false;
}

}  // namespace annulus::plan
