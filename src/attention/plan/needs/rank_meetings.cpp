#include "attention/plan/needs/rank_meetings.hpp"

#include <algorithm>
#include <bit>

namespace annulus::plan {

namespace {

constexpr int word_bits = 64;

/// Positions begin … end − 1 lie on rank `rank`.
struct HeldRun {
  std::int64_t begin = 0, end = 0;
  int rank = 0;
};

/// All runs of rows of all ranks, by position.
std::vector<HeldRun> held_runs(const Problem& problem) {
  std::vector<HeldRun> runs;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const PositionMap shard = problem.owned(rank);
    for (std::int64_t row = 0; row < shard.count;) {
      const std::int64_t end = shard.end_of_run(row);
      runs.push_back({shard(row), shard(row) + end - row, rank});
      row = end;
    }
  }
  std::ranges::sort(runs, {}, &HeldRun::begin);
  return runs;
}

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
  const std::vector<HeldRun> runs = held_runs(problem);
  auto first = runs.begin();  // the run of the first key
  for (const HeldRun& queries : runs) {
    // The keys of a row are an interval with the row in it, and so are those of a run.
    const std::int64_t begin = rule.key_range(queries.begin, rule.left, rule.right).begin,
                       end = rule.key_range(queries.end - 1, rule.left, rule.right).end;
    while (first->end <= begin) ++first;
    for (auto keys = first; keys != runs.end() && keys->begin < end; ++keys) {
      set(keys_, queries.rank, keys->rank);
      set(queries_, keys->rank, queries.rank);
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
