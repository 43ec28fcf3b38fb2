#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <annulus/plan/period.hpp>
#include <annulus/plan/plan.hpp>

namespace annulus::simulate {

/// The ranks of a plan, of which the first `walked` stand for all: each for those that are a multiple of
/// `walked` on, its orbit.
class Orbits {
 public:
  Orbits(const plan::Plan& plan, int walked);

  int walked() const { return walked_; }
  int standing_for(int rank) const { return rank % walked_; }
  /// The sender and the receiver as the message's image from a walked sender.
  std::pair<int, int> image(int from, int to) const {
    const int sender = standing_for(from);
    return {sender, translation_.rank(to, sender - from)};
  }

  /// Unmasked pairs of one head in a compute.
  struct Pairs {
    std::int64_t here = 0;  ///< of the walked rank
    std::int64_t most = 0;  ///< the most that a sample of its orbit has
  };
  Pairs pairs(const plan::Compute& compute) const;

 private:
  PositionMap rows(int shard, RowRange rows) const {
    return shards_[static_cast<std::size_t>(shard)].slice(rows);
  }

  const plan::Problem& problem_;
  int walked_;
  plan::Translation translation_;
  std::vector<PositionMap> shards_;
  std::vector<int> sample_;  // distances to the ranks of an orbit that are looked at
};

/// Exact work of all ranks from that of the walked ones. A rank that, of some queries and heads, does all
/// pairs has as many as the mask leaves these queries, and so has every rank of its orbit of its own; the
/// same holds for keys. (A plan that splits both sides is told by the pairs of its walked ranks.)
class Totals {
 public:
  explicit Totals(int walked) : ranks_(static_cast<std::size_t>(walked)) {}
  /// A walked rank computes `pairs` pairs of each head.
  void add(int rank, const plan::Compute& compute, std::int64_t pairs);
  /// Pairs by rank, summed over heads.
  std::vector<std::int64_t> pairs(const plan::Problem& problem) const;

 private:
  using Heads = std::map<std::pair<int, int>, int>;  // (shard, first head) → heads
  struct Rank {
    std::int64_t pairs = 0;
    Heads queries, keys;
  };
  std::vector<Rank> ranks_;
};

}  // namespace annulus::simulate
