#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include <annulus/plan/plan.hpp>
#include <annulus/simulate/cluster.hpp>

namespace annulus::simulate {

/// Work by distance on the ring of Ulysses groups: that of a rank (or group) with its queries and the keys of
/// the one `hop` places before it.
struct WorkByDistance {
  std::vector<std::int64_t> pairs;  ///< by hop: the most pairs of one head that a sampled group has there
  std::int64_t most = 0;            ///< the most pairs that a sampled group has with all keys
  bool dense = true;                ///< all sampled groups need the keys of all others
  std::int64_t rows = 0;            ///< of the largest sampled shard
  bool contiguous = false;

  /// 0, and the distances at which there is work: the rounds of a flat ring.
  std::vector<int> hops() const;
  /// Share of a shard's rows that take part in `of` pairs with another shard: on contiguous shards the pairs
  /// of a window lie in one corner, on others every row is taken for needed.
  double share(std::int64_t of) const;
};

/// Closed-form times of schedules on one layout of a problem: per step the larger of compute and transfers,
/// with whole shards and a sample of the ranks. Good for telling what is worth a simulation.
class Estimator {
 public:
  /// The problem's layout counts, its grid does not.
  /// `density`: share of the pairs that is computed (Selected).
  Estimator(const plan::Problem& problem, const Cluster& cluster, double density = 1);

  struct Estimate {
    double seconds = 0;
    /// Steps of ranks that a simulation makes, roughly; where the plan repeats itself, those of the first
    /// node.
    std::int64_t steps = 0;
  };
  /// Of one pass of a schedule as make_plan names it.
  Estimate estimate(std::string_view schedule, plan::Pass pass);

 private:
  struct Bytes {
    double inputs = 0, sums = 0;  ///< of one shard
  };
  /// Seconds that n bytes take from one step to the next.
  struct Way {
    double bandwidth = 0, latency = 0;
    double seconds(double bytes) const { return bytes > 0 ? latency + bytes / bandwidth : 0; }
  };

  const WorkByDistance& work_by_distance(int ring_degree);
  double compute(const WorkByDistance& work, plan::Pass pass, int hop, int heads) const;
  double kernel(const WorkByDistance& work, plan::Pass pass, std::int64_t pairs) const;
  /// Bytes of rows of some tensors with so many heads.
  double bytes(double rows, double q_heads, double kv_heads,
               std::initializer_list<plan::Tensor> tensors) const;
  Bytes circulated(plan::Pass pass, bool queries, double rows, double q_heads, double kv_heads) const;

  int ranks() const { return problem_.ranks(); }
  int node_size() const;
  Way intra_node() const { return {cluster_.intra_node.bandwidth, cluster_.intra_node.latency}; }
  /// Between nodes, where `ranks` of a node send at the same time.
  Way inter_node(int ranks) const;
  /// Of a message to the rank `distance` places on, which all ranks send at the same time.
  Way way(int distance) const;

  /// Seconds in which every rank sends `bytes`, less where contiguous shards meet in part, to each rank that
  /// needs its shard.
  double scatter(const WorkByDistance& work, double bytes) const;

  Estimate ring(plan::Pass pass, bool queries);
  Estimate rings(plan::Pass pass, bool queries, int group, bool sums_alone);
  Estimate all_gather(plan::Pass pass);
  Estimate helper_worker(plan::Pass pass);
  Estimate heads_exchanged(plan::Pass pass, const plan::Grid& grid);
  std::int64_t steps(const WorkByDistance& work, int rounds, int period) const;

  plan::Problem problem_;
  const Cluster& cluster_;
  double density_;
  std::map<int, WorkByDistance> work_;  // by ring degree
};

}  // namespace annulus::simulate
