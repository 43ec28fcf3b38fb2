#pragma once

#include <vector>

#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan {

/// Ranks owner − before … owner + behind, around the ring; none when `behind` is −1.
struct RingWindow {
  int before = 0, behind = -1;

  /// One of the ranks begin … end − 1 of `ranks` is among them.
  bool reaches(int owner, int begin, int end, int ranks) const;
};

/// The ranks with which each shard has unmasked pairs, by owner.
struct RingWindows {
  std::vector<RingWindow> of_queries, of_keys;
  bool known() const { return !of_keys.empty(); }
};

/// On layouts that deal stripes of the sequence out in turn, the keys of a row are an interval that contains
/// the row, as far as the mask is a band, with or without documents. So a shard has unmasked pairs
/// with the ranks between the ones that its stripes reach farthest before and behind themselves. Not known,
/// and empty, for other layouts, for masks with dilation or blocks, and on grids.
///
/// O(stripes of the sequence), but stops when every shard meets every rank: soon, unless reach or documents
/// are shorter than a round of stripes.
RingWindows find_ring_windows(const Problem& problem);

}  // namespace annulus::plan
