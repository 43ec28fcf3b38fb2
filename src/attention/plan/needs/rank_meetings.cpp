#include "attention/plan/needs/rank_meetings.hpp"

#include <algorithm>
#include <bit>

namespace annulus::plan {

namespace {

constexpr int word_bits = 64;

/// Positions begin … end − 1 lie on rank `rank`, from `row` on.
struct HeldRun {
  std::int64_t begin = 0, end = 0, row = 0;
  int rank = 0;
};

/// All runs of rows of all ranks, rank by rank.
std::vector<HeldRun> held_runs(const Problem& problem) {
  std::vector<HeldRun> runs;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const PositionMap shard = problem.owned(rank);
    for (std::int64_t row = 0; row < shard.count;) {
      const std::int64_t end = shard.end_of_run(row);
      runs.push_back({shard(row), shard(row) + end - row, row, rank});
      row = end;
    }
  }
  return runs;
}

/// Ranges of a rank's keys to which the queries of rank `owner` attend, as far as they have been found.
struct RankRanges {
  int owner = -1, count = 0;
  RowRange last;
};

}  // namespace

RankMeetings::RankMeetings(const Problem& problem) {
  const MaskRule rule = problem.mask.rule();
  if (problem.layout.kind() != Layout::Kind::balanced || rule.dilation > 1 ||
      rule.block_row_starts != nullptr || problem.grid.ulysses_degree > 1 || problem.positions > 0)
    return;
  ranks_ = problem.ranks();
  words_ = (ranks_ + word_bits - 1) / word_bits;
  keys_.resize(static_cast<std::size_t>(ranks_) * static_cast<std::size_t>(words_));
  queries_ = keys_;
  most_ranges_.resize(static_cast<std::size_t>(ranks_));
  const std::vector<HeldRun> by_rank = held_runs(problem);
  std::vector<HeldRun> runs = by_rank;
  std::ranges::sort(runs, {}, &HeldRun::begin);
  std::vector<std::int64_t> rows_of;  // each rank
  for (int rank = 0; rank < ranks_; ++rank) rows_of.push_back(problem.owned(rank).count);
  std::vector<RankRanges> found(static_cast<std::size_t>(ranks_));  // by the keys' rank
  for (const HeldRun& queries : by_rank) {
    const int owner = queries.rank;
    // The keys of a row are an interval with the row in it, and so are those of a run.
    const std::int64_t begin = rule.key_range(queries.begin, rule.left, rule.right).begin,
                       end = rule.key_range(queries.end - 1, rule.left, rule.right).end;
    for (auto keys = std::ranges::upper_bound(runs, begin, {}, &HeldRun::end);
         keys != runs.end() && keys->begin < end; ++keys) {
      set(keys_, owner, keys->rank);
      set(queries_, keys->rank, owner);
      const RowRange rows{keys->row + std::max(begin - keys->begin, std::int64_t{0}),
                          keys->row + std::min(end, keys->end) - keys->begin};
      RankRanges& ranges = found[static_cast<std::size_t>(keys->rank)];
      if (ranges.owner != owner) ranges = {.owner = owner, .count = 0, .last = {}};
      if (ranges.count == 0 || is_gap(ranges.last, rows, rows_of[static_cast<std::size_t>(keys->rank)]))
        ++ranges.count;
      ranges.last.end = std::max(ranges.last.end, rows.end);
      const int hop = owner >= keys->rank ? owner - keys->rank : owner - keys->rank + ranks_;
      int& most = most_ranges_[static_cast<std::size_t>(hop)];
      most = std::max(most, ranges.count);
    }
  }
}

void RankMeetings::set(Bits& bits, int owner, int rank) const {
  bits[static_cast<std::size_t>(owner * words_ + rank / word_bits)] |= std::uint64_t{1} << (rank % word_bits);
}

int RankMeetings::next(const Bits& bits, int owner, int begin, int end) const {
  for (int rank = begin; rank < end; rank = (rank / word_bits + 1) * word_bits) {
    const std::uint64_t rest =
        bits[static_cast<std::size_t>(owner * words_ + rank / word_bits)] >> (rank % word_bits);
    if (rest != 0) return std::min(rank + std::countr_zero(rest), end);
  }
  return end;
}

}  // namespace annulus::plan
