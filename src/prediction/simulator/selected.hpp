#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

namespace annulus::simulator {

/// A selection of blocks: the keys that each list computes, in blocks of `block` tokens, for blocks of
/// queries or for each query. The columns of a selection, which no step of a plan computes, are not in it.
class SelectedBlocks {
 public:
  /// Block diagonals. distances: of each list of a sequence those that are selected; heads / lists query
  /// heads share one.
  SelectedBlocks(std::int64_t tokens, std::int64_t block,
                 const std::vector<std::vector<std::int64_t>>& distances);
  /// Block columns that a list selects for the row-th `row_tokens` queries, increasing, none behind the last
  /// of these queries. Called once for each list and row, in this order.
  using Columns = std::function<std::vector<std::int64_t>(int list, std::int64_t row)>;
  /// Any blocks, for rows of `row_tokens` queries: `block`, or 1 where each query has blocks of its own.
  static SelectedBlocks of_rows(std::int64_t tokens, std::int64_t block, std::int64_t row_tokens, int lists,
                                const Columns& columns);

  std::int64_t tokens() const { return tokens_; }
  int lists() const { return static_cast<int>(lists_.size()); }
  /// Selected pairs of these queries, keys and query heads. Throws Error when the problem has another length,
  /// or heads that cannot share the lists.
  std::int64_t pairs(const plan::Problem& problem, const PositionMap& q, const PositionMap& k,
                     plan::HeadRange heads) const;
  /// Those of the compute.
  std::int64_t pairs(const plan::Problem& problem, const plan::Compute& compute) const;
  /// Whether, by position, a list has the key for some of the queries `q`.
  std::vector<bool> keys(int list, const PositionMap& q) const;
  /// Share of the causal pairs.
  double density() const;
  /// What the simulator takes; lives no longer than this.
  Selected selected() const;

 private:
  struct List {
    std::vector<std::int64_t> starts;  ///< of each row in `keys`, and their number
    std::vector<RowRange> keys;        ///< positions: of each row increasing and apart
  };

  SelectedBlocks(std::int64_t tokens, std::int64_t row_tokens) : tokens_(tokens), row_tokens_(row_tokens) {}
  void add_list(std::int64_t block, const Columns& columns);
  /// Calls visit(queries, keys) with the rows of `q` and the key ranges that the list has for them, without
  /// those that end at or before position `from`.
  template <class Visit>
  void visit_ranges(const List& list, const PositionMap& q, std::int64_t from, const Visit& visit) const;
  std::int64_t list_pairs(const List& list, const PositionMap& q, const PositionMap& k) const;

  std::int64_t tokens_, row_tokens_;
  std::vector<List> lists_;
};

/// Rows of K that messages bring to ranks, summed over ranks; those of V are as many. A row is *visible* to a
/// rank where the mask `causal` allows it for some query that the rank computes, and *unneeded* where it is
/// visible, but in no selected block of these queries.
struct ReceivedRows {
  std::int64_t received = 0;
  std::int64_t visible = 0, unneeded = 0;  ///< received rows, to the rank that receives them
  /// Received rows that are visible, and unneeded, to the rank that receives them and to those that they
  /// reach through it: the sender of a row that is unneeded onward could leave it out.
  std::int64_t visible_onward = 0, unneeded_onward = 0;

  friend bool operator==(const ReceivedRows&, const ReceivedRows&) = default;
};

struct ReceivedKeys {
  ReceivedRows of_kv_heads;   ///< rows of single kv heads
  ReceivedRows of_all_heads;  ///< rows of all kv heads of a message: needed where one of them needs it
};

/// Which of the rows that a plan under the mask `causal` sends a selection needs. Columns, which travel on
/// their own, need none. Throws Error as SelectedBlocks::pairs does.
ReceivedKeys count_received_keys(const plan::Plan& plan, const SelectedBlocks& selection);

}  // namespace annulus::simulator
