#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan {

/// Two ranges of a shard of `count` rows are so far apart that the rows between, which nobody asks for, cost
/// more than another message and another compute. Less than a sixteenth of the shard saves next to nothing
/// (docs/benchmarks/documents.md).
inline bool is_gap(RowRange before, RowRange next, std::int64_t count) {
  return 16 * (next.begin - before.end) >= std::max<std::int64_t>(count, 1);
}

/// Which ranks' queries attend to which ranks' keys on the layout `balanced`, where shards of neighbours do
/// not make a simple map together.
class RankMeetings {
 public:
  RankMeetings() = default;
  /// Finds out which ranks meet. Not known for other layouts, for masks with dilation or blocks, on grids,
  /// and where some positions take no part. O(runs of rows + pairs of runs that meet).
  explicit RankMeetings(const Problem& problem);

  bool known() const { return ranks_ > 0; }

  /// Some query of rank `owner` attends to some key of the ranks begin … end − 1.
  bool any_of_queries(int owner, int begin, int end) const { return next(keys_, owner, begin, end) < end; }
  /// Some key of rank `owner` is attended to by some query of the ranks.
  bool any_of_keys(int owner, int begin, int end) const { return next(queries_, owner, begin, end) < end; }
  /// The first of the ranks begin … end − 1 of which that is true; `end` where there is none.
  int next_of_queries(int owner, int begin, int end) const { return next(keys_, owner, begin, end); }
  int next_of_keys(int owner, int begin, int end) const { return next(queries_, owner, begin, end); }

  /// By hop, the most ranges of keys with gaps between them that a rank's queries attend to on the rank `hop`
  /// places before it.
  const std::vector<int>& most_ranges() const { return most_ranges_; }

 private:
  using Bits = std::vector<std::uint64_t>;  // (rank, words)

  int next(const Bits& bits, int owner, int begin, int end) const;
  void set(Bits& bits, int owner, int rank) const;

  int ranks_ = 0, words_ = 0;
  Bits keys_, queries_;  // whose keys a rank's queries attend to, and the other way round
  std::vector<int> most_ranges_;
};

}  // namespace annulus::plan
