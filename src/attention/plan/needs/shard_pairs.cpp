#include "attention/plan/needs/shard_pairs.hpp"

#include <algorithm>
#include <optional>

#include "attention/plan/needs/hop_search.hpp"

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

/// What meets under a band with or without documents. The ends of the keys of a row, and of the queries of a
/// key, do not decrease, so two fingers that leap over what the other one's row cannot meet find the first
/// pair, which has the first row of either side, or run past an end where there is none; and so the last
/// pair.
ActiveRows active_rows_of_band(const MaskRule& rule, const PositionMap& q, const PositionMap& k) {
  const auto keys = [&](std::int64_t i) { return rule.key_range(q(i), rule.left, rule.right); };
  const auto queries = [&](std::int64_t j) { return rule.key_range(k(j), rule.right, rule.left); };
  std::int64_t i = 0, j = k.rows_below(keys(0).begin);
  while (j < k.count && k(j) >= keys(i).end) {
    i = q.rows_below(queries(j).begin);
    if (i == q.count) return {};
    j = k.rows_below(keys(i).begin);
  }
  if (j == k.count) return {};
  ActiveRows active{{i, q.count}, {j, k.count}};
  i = q.count - 1, j = k.rows_below(keys(i).end) - 1;
  while (k(j) < keys(i).begin) {
    i = q.rows_below(queries(j).end) - 1;
    j = k.rows_below(keys(i).end) - 1;
  }
  active.q.end = i + 1;
  active.kv.end = j + 1;
  return active;
}

/// What meets, where that is known without a search: nothing, everything, under bands.
std::optional<ActiveRows> known_active_rows(const Mask& mask, const PositionMap& q, const PositionMap& k) {
  const MaskRule rule = mask.rule();
  const Coverage coverage = rule.classify(q, k);
  if (coverage == Coverage::full) return ActiveRows{{0, q.count}, {0, k.count}};
  if (coverage == Coverage::empty) return ActiveRows{};
  if (rule.dilation == 1 && rule.block_row_starts == nullptr) return active_rows_of_band(rule, q, k);
  return mask.is_empty(q, k) ? std::optional(ActiveRows{}) : std::nullopt;
}

RowRange search_keys(const Mask& mask, const PositionMap& q, const PositionMap& k) {
  return smallest_range(k.count, [&](RowRange rows) { return mask.is_empty(q, k.slice(rows)); });
}

RowRange search_queries(const Mask& mask, const PositionMap& q, const PositionMap& k) {
  return smallest_range(q.count, [&](RowRange rows) { return mask.is_empty(q.slice(rows), k); });
}

}  // namespace

RowRange attended_keys(const Mask& mask, const PositionMap& q, const PositionMap& k) {
  const auto known = known_active_rows(mask, q, k);
  return known ? known->kv : search_keys(mask, q, k);
}

RowRange attending_queries(const Mask& mask, const PositionMap& q, const PositionMap& k) {
  const auto known = known_active_rows(mask, q, k);
  return known ? known->q : search_queries(mask, q, k);
}

RowRange first_rows(RowRange rows, std::int64_t count) {
  return {std::min(rows.begin, count), std::min(rows.end, count)};
}

RowRange hull(RowRange a, RowRange b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

ShardPairs::ShardPairs(const Problem& problem) : problem_(problem) {
  for (int rank = 0; rank < problem.ranks(); ++rank) shards_.push_back(problem.shard(rank));
  const MaskRule rule = problem_.mask.rule();
  cuts_ = rule.left < rule.tokens - 1 || rule.documents > 1 || rule.block_row_starts != nullptr;
  all_active_ = active_everywhere();
  if (!all_active_) near_ = find_ring_windows(problem_);
  meetings_ = RankMeetings(problem_);
  if (problem_.positions > 0 && (rule.dilation > 1 || rule.block_row_starts != nullptr))
    of_all_positions_ = std::make_shared<const ShardPairs>(problem_.of_all_positions());
  const auto [least, most] = std::ranges::minmax(shards_, {}, &PositionMap::count);
  even_ = most.count - least.count <= 1;
}

bool ShardPairs::active_everywhere() const {
  const MaskRule rule = problem_.mask.rule();
  // Keys are attended to from anywhere behind them, or a little before. With gaps, or an end, it is not that
  // simple.
  if (cuts_ || rule.dilation > 1) return false;
  std::int64_t latest_key = 0, earliest_query = rule.tokens;
  for (const PositionMap& shard : shards_) {
    if (shard.empty()) return false;
    latest_key = std::max(latest_key, shard.front());
    earliest_query = std::min(earliest_query, shard.back());
  }
  return latest_key - earliest_query <= rule.right;
}

bool ShardPairs::any(int q, int kv) const {
  if (all_active_) return true;
  if (near_.known() || meetings_.known()) return any(Side::key, kv, {q, q + 1});
  return !shard(q).empty() && !shard(kv).empty() && !problem_.mask.is_empty(shard(q), shard(kv));
}

ActiveRows ShardPairs::of(int q, int kv) const {
  if (of_all_positions_) {
    if (!any(q, kv)) return {};
    const ActiveRows active = of_all_positions_->of(q, kv);
    return {first_rows(active.q, shard(q).count), first_rows(active.kv, shard(kv).count)};
  }
  const Mask& mask = problem_.mask;
  if (const auto known = known_active_rows(mask, shard(q), shard(kv))) return *known;
  return {search_queries(mask, shard(q), shard(kv)), search_keys(mask, shard(q), shard(kv))};
}

std::vector<ActiveRows> ShardPairs::parts(int q, int kv) const {
  const ActiveRows all = any(q, kv) ? of(q, kv) : ActiveRows{};
  if (all.empty()) return {};
  if (!meetings_.known()) return {all};
  const PositionMap &queries = shard(q), &keys = shard(kv);
  const MaskRule rule = problem_.mask.rule();
  std::vector<RowRange> ranges;
  for (std::int64_t row = all.q.begin, end; row < all.q.end; row = end) {
    end = std::min(queries.end_of_run(row), all.q.end);
    const RowRange rows{keys.rows_below(rule.key_range(queries(row), rule.left, rule.right).begin),
                        keys.rows_below(rule.key_range(queries(end - 1), rule.left, rule.right).end)};
    if (rows.empty()) continue;
    if (ranges.empty() || is_gap(ranges.back(), rows, keys.count)) ranges.push_back(rows);
    ranges.back().end = std::max(ranges.back().end, rows.end);
  }
  if (ranges.size() == 1) return {all};
  std::vector<ActiveRows> parts;
  for (const RowRange rows : ranges)
    parts.push_back({attending_queries(problem_.mask, queries, keys.slice(rows)), rows});
  return parts;
}

/// Shows `visit` the rows of the ranks, together or, on grids, rank by rank, until it returns true.
template <class Visit>
bool ShardPairs::visit_until(RankRange ranks, const Visit& visit) const {
  if (ranks.empty()) return false;
  if (ranks.size() == 1) return visit(shard(ranks.begin));
  if (problem_.grid.ulysses_degree == 1) {
    return visit(problem_.taking_part(
        problem_.layout.shards(problem_.mask.tokens(), this->ranks(), ranks.begin, ranks.end)));
  }
  return std::any_of(shards_.begin() + ranks.begin, shards_.begin() + ranks.end, visit);
}

bool ShardPairs::any(Side side, int owner, RankRange ranks) const {
  if (all_active_ || ranks.empty()) return !ranks.empty();
  if (near_.known()) {
    const auto& near = side == Side::query ? near_.of_queries : near_.of_keys;
    return near[static_cast<std::size_t>(owner)].reaches(owner, ranks.begin, ranks.end, this->ranks());
  }
  if (meetings_.known())
    return side == Side::query ? meetings_.any_of_queries(owner, ranks.begin, ranks.end)
                               : meetings_.any_of_keys(owner, ranks.begin, ranks.end);
  const PositionMap& own = shard(owner);
  return !own.empty() && visit_until(ranks, [&](const PositionMap& others) {
    if (others.empty()) return false;
    return side == Side::query ? !problem_.mask.is_empty(own, others) : !problem_.mask.is_empty(others, own);
  });
}

RowRange ShardPairs::rows(Side side, int owner, RankRange ranks) const {
  const PositionMap& own = shard(owner);
  if (of_all_positions_) return first_rows(of_all_positions_->rows(side, owner, ranks), own.count);
  RowRange rows;
  const auto add = [&](const PositionMap& others) {
    rows = hull(rows, side == Side::query ? attending_queries(problem_.mask, own, others)
                                          : attended_keys(problem_.mask, others, own));
    return rows == RowRange{0, own.count};
  };
  if (!meetings_.known()) {
    visit_until(ranks, add);
    return rows;
  }
  const auto next = [&](int rank) {
    return side == Side::query ? meetings_.next_of_queries(owner, rank, ranks.end)
                               : meetings_.next_of_keys(owner, rank, ranks.end);
  };
  for (int rank = next(ranks.begin); rank < ranks.end; rank = next(rank + 1))
    if (add(shard(rank))) break;
  return rows;
}

std::vector<bool> ShardPairs::hops() const {
  return hops_with_any(ranks(), ranks(), [this](int kv, Hops hops) {
    const int first = turned(kv, hops.first), last = first + (hops.last - hops.first);
    return any(Side::key, kv, {first, std::min(last + 1, ranks())}) ||
           any(Side::key, kv, {0, last + 1 - ranks()});
  });
}

std::vector<int> ShardPairs::most_parts() const {
  if (meetings_.known()) return meetings_.most_ranges();
  const std::vector<bool> meet = hops();
  return {meet.begin(), meet.end()};
}

}  // namespace annulus::plan
