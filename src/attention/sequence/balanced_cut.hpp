#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/attention/sequence/position_map.hpp>

namespace annulus {

/// A sequence cut into runs of rows that are dealt to ranks: the layout `balanced`. It is for one mask, or
/// for the masks of a model's layers, whose pairs add up.
///
/// - Each of R ranks has tokens / R rows, the first ranks one more.
/// - The unmasked pairs of a rank's queries are the mean of all ranks, up to `tolerance`, where the documents
///   allow it.
/// - As few rows as possible belong to documents that ranks share, first of all between nodes.
/// - The ranks that share a document of more pairs than one of them has hold its rows in proportion to their
///   work on it, so that each sends as much as it receives.
///
/// Ranks are halved, and halved again, and so is what they hold: pieces of documents in the order of their
/// mean number of keys per query. One half gets an interval of that order and the other what lies before and
/// behind it, so that rows and pairs both come out: the interval's place decides how many pairs it has. Its
/// two ends are all that is cut. One causal document becomes a zigzag in this way, and many short ones stay
/// whole.
class BalancedCut {
 public:
  static constexpr double tolerance = 0.01;
  /// Rows of a kernel's tile. Where the tolerance allows it, one of the two cuts of a halving lies a multiple
  /// of `tile` rows behind the start of its document, so that tiles are whole; and the other one, too, where
  /// documents and shards are multiples of `tile`.
  static constexpr std::int64_t tile = 128;

  /// Throws Error where a mask has a block list, or another length or other documents than the first.
  /// `ranks_per_node` 0: all ranks are near one another.
  BalancedCut(std::span<const MaskedLayers> layers, int ranks, int ranks_per_node);

  std::int64_t tokens() const { return tokens_; }
  int ranks() const { return static_cast<int>(first_run_.size()) - 1; }

  /// Whether this mask is among those that it was made for, on these ranks.
  bool is_for(const Mask& mask, int ranks, int ranks_per_node) const;

  /// All rows of the ranks first … last − 1; its runs live as long as this object. Thread safe.
  PositionMap shards(int first, int last) const;

  /// The runs that shards of single ranks borrow, rank by rank.
  std::span<const RowRun> runs() const { return runs_; }

  /// The most that runs() of a sequence of `tokens` tokens may hold. Each run has a row, and behind those of
  /// a rank stands one more. So many there are where a rank never holds two neighbours, as in documents of
  /// one or two tokens; D documents on R ranks have D + 4 (R − 1) runs and R ends at most: a run begins where
  /// a document does, or where one was cut. Each of the R − 1 divisions takes parts of two documents at most,
  /// and separates the two rows around each end of a part.
  static constexpr std::int64_t most_runs(std::int64_t tokens, int ranks) { return tokens + ranks; }

  /// Documents of which two ranks both have rows, at most. A rank's rows of a document lie side by side in
  /// its shard, so under a mask with documents these are the ranges of rows that one needs of the other. Two
  /// ranks part in one division. Until then what they have of a document is one piece, and the division gives
  /// both of its halves rows of two pieces at most.
  static constexpr int most_shared_documents = 2;

  /// Unmasked pairs of each rank's queries with all keys, of one head, in all layers together.
  std::span<const std::int64_t> pairs() const { return pairs_; }

  /// Hash of all runs and who has them.
  std::uint64_t fingerprint() const { return fingerprint_; }

  friend bool operator==(const BalancedCut& a, const BalancedCut& b) {
    return a.tokens_ == b.tokens_ && a.runs_ == b.runs_ && a.first_run_ == b.first_run_;
  }

 private:
  std::int64_t tokens_ = 0;
  std::vector<std::array<std::int64_t, 3>> windows_;  ///< left, right and dilation of each mask
  std::uint64_t documents_fingerprint_ = 0;
  int ranks_per_node_ = 0;
  std::vector<RowRun> runs_;            ///< of each rank, with the one behind its last row
  std::vector<std::size_t> first_run_;  ///< by rank, and the end
  std::vector<std::int64_t> pairs_;     ///< by rank
  std::uint64_t fingerprint_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<int, int>, std::vector<RowRun>>
      unions_;  ///< of several ranks, made when they are asked for
};

}  // namespace annulus
