#pragma once

#include <string>
#include <vector>

namespace annulus {

/// Where the ranks of a communicator sit: node by node, consecutive ranks on the same node.
class Topology {
 public:
  /// The most ranks; more are a slip of the hand, told before plans of them take all memory.
  static constexpr int max_ranks = 1 << 17;

  Topology() = default;

  /// `ranks` ranks, `ranks_per_node` to a node; the last node may hold fewer. Throws Error when there are
  /// none, or more than max_ranks.
  static Topology uniform(int ranks, int ranks_per_node);

  /// One entry a node, in rank order. Throws Error when an entry is not positive, or all are more than
  /// max_ranks.
  explicit Topology(std::vector<int> ranks_on_node);

  int ranks() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(first_rank_.size()); }

  /// Node of a rank.
  int node(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }

  /// Index of a rank among those of its node.
  int local_rank(int rank) const { return rank - first_rank_[static_cast<std::size_t>(node(rank))]; }

  int ranks_on(int node) const;
  /// Ranks of the node that has most.
  int most_ranks_on_a_node() const;
  int first_rank(int node) const { return first_rank_[static_cast<std::size_t>(node)]; }

  bool same_node(int a, int b) const { return node(a) == node(b); }

  /// Every node holds the same number of ranks.
  bool is_uniform() const;

  /// "2 nodes × 4 ranks", or the list when they differ.
  std::string to_string() const;

  friend bool operator==(const Topology&, const Topology&) = default;

 private:
  std::vector<int> node_of_ = {0};
  std::vector<int> first_rank_ = {0};
};

}  // namespace annulus
