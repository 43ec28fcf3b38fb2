#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/plan/period.hpp"

namespace annulus::simulator {

/// The rank classes of a plan: each of the first `representatives` ranks stands for the ranks that are a
/// multiple of `representatives` after it.
class RankClasses {
 public:
  RankClasses(const plan::Plan& plan, int representatives);

  int representatives() const { return representatives_; }
  int representative(int rank) const { return rank % representatives_; }
  /// The sender and the receiver as the message's image from a representative sender.
  std::pair<int, int> image(int from, int to) const {
    const int sender = representative(from);
    return {sender, shift_.rank(to, sender - from)};
  }

  /// Unmasked pairs of one head in a compute.
  struct ClassPairs {
    std::int64_t here = 0;  ///< of the representative rank
    std::int64_t most = 0;  ///< the most that a sample of its class has
  };
  ClassPairs pairs(const plan::Compute& compute) const;
  PositionMap rows(int shard, RowRange rows) const { return shards_[shard].slice(rows); }

 private:
  const plan::Problem& problem_;
  int representatives_;
  plan::RankShift shift_;
  std::vector<PositionMap> shards_;
  std::vector<int> sample_;  // distances to the ranks of a class that are looked at
};

/// What a compute of a plan takes. Keeps `plan` and `cluster`.
class Kernels {
 public:
  Kernels(const plan::Plan& plan, const Cluster& cluster, int representatives, const Selected& selected)
      : plan_(plan), cluster_(cluster), selected_(selected), classes_(plan, representatives) {}

  struct ComputeWork {
    std::int64_t here = 0;   ///< unmasked pairs of one head on the representative rank
    std::int64_t pairs = 0;  ///< selected pairs of all heads, the most that a sample of its class has
    double seconds = 0;      ///< that these take
  };
  ComputeWork work(const plan::Compute& compute);
  const Selected& selected() const { return selected_; }
  const RankClasses& classes() const { return classes_; }

 private:
  const plan::Plan& plan_;
  const Cluster& cluster_;
  Selected selected_;
  RankClasses classes_;
  std::map<std::pair<std::int64_t, BlockMask>, double> rates_;  // by rows and mask
};

/// Exact work of all ranks from that of the representative ranks. A rank that, of some queries and heads,
/// does all pairs has as many as the mask leaves these queries, and so has every rank of its class of its
/// own; the same holds for keys. (A plan that splits both sides is told by the pairs of its representative
/// ranks.)
class Totals {
 public:
  explicit Totals(int representatives) : ranks_(static_cast<std::size_t>(representatives)) {}
  /// A representative rank computes `pairs` pairs of each head.
  void add(int rank, const plan::Compute& compute, std::int64_t pairs);
  /// Pairs by rank, summed over heads.
  std::vector<std::int64_t> pairs(const plan::Problem& problem) const;

 private:
  using Heads = std::map<std::pair<int, int>, int>;  // (shard, first head) → heads
  struct RankTotals {
    std::int64_t pairs = 0;
    Heads queries, keys;
  };
  std::vector<RankTotals> ranks_;
};

}  // namespace annulus::simulator
