#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "prediction/simulator/rank_classes.hpp"
#include "prediction/simulator/summary.hpp"

namespace annulus::simulator {
namespace {

constexpr int most_nodes = 3, most_ranks_of_node = 3;  // that are looked at
constexpr int runs = 3;                                // of steps between the first and the last ones

/// Some of `count` places, first and last among them, evenly spread.
std::vector<int> sample(int count, int most) {
  const int taken = std::min(count, most);
  std::vector<int> places;
  for (int i = 0; i < taken; ++i)
    places.push_back(static_cast<int>(std::int64_t{i} * (count - 1) / std::max(taken - 1, 1)));
  return places;
}

/// Ranks that are looked at. Where one of them waits for transfers, all enter the step together, when the
/// last rank is there and the transfers have arrived. Each goes through other steps on its own.
class Lockstep {
 public:
  Lockstep(const plan::Plan& plan, const Cluster& cluster, double density)
      : plan_(plan),
        topology_(plan.problem.topology),
        cluster_(cluster),
        kernels_(plan, cluster, ranks_to_simulate(plan, Detail::times, plan::RankSubset::automatic),
                 {density}) {
    for (const int node : sample(topology_.nodes(), plan.period == 0 ? most_nodes : 1)) {
      const int ranks = topology_.ranks_on(node), first_nic = static_cast<int>(nics_.size());
      const auto places = sample(ranks, most_ranks_of_node);
      for (const int place : places) {
        const bool end = place == 0 || place == ranks - 1;
        const int number = topology_.first_rank(node) + place;
        ranks_.push_back({number,
                          end ? 1 : static_cast<double>(ranks - 2) / static_cast<double>(places.size() - 2),
                          static_cast<std::size_t>(first_nic + cluster.nic(topology_, number))});
      }
      nics_.resize(nics_.size() + static_cast<std::size_t>(ranks));
    }
  }

  /// Seconds of the steps from `first` to before `end`, until all that they have posted has arrived.
  double seconds(int first, int end) {
    for (SampledRank& rank : ranks_) {
      rank.to_node = rank.to_nic = {};
      rank.now = 0;
    }
    std::ranges::fill(nics_, Port());
    due_.clear();
    for (int index = first; index < end; ++index) {
      if (!due_.empty() && due_.begin()->first <= index) {
        double all = latest();
        for (; !due_.empty() && due_.begin()->first <= index; due_.erase(due_.begin()))
          all = std::max(all, due_.begin()->second);
        for (SampledRank& rank : ranks_) rank.now = all;
      }
      for (SampledRank& rank : ranks_) {
        const plan::Step step = plan_.step(rank.number, index);
        for (const plan::Transfer& send : step.sends) post(rank, send, 0);
        for (const plan::Transfer& receive : step.receives) post(rank, receive, 1);
        for (const plan::Compute& compute : step.computes) rank.now += kernels_.work(compute).seconds;
      }
    }
    double end_of_all = latest();
    for (const auto& [step, arrival] : due_) end_of_all = std::max(end_of_all, arrival);
    return end_of_all;
  }

 private:
  using Port = std::array<double, 2>;  // out and in: time from which it has nothing to do
  struct SampledRank {
    int number;
    double stands_for;  // ranks of its node
    std::size_t nic;
    double now = 0;
    Port to_node = {}, to_nic = {};
  };

  double latest() const { return std::ranges::max(ranks_, {}, &SampledRank::now).now; }

  void post(SampledRank& rank, const plan::Transfer& transfer, int direction) {
    const auto bytes = static_cast<double>(bytes_of(plan_.problem, transfer));
    const auto pass = [&](Port& port, double seconds) {
      return port[direction] = std::max(port[direction], rank.now) + seconds;
    };
    double arrival = 0;
    if (topology_.same_node(rank.number, transfer.peer)) {
      arrival = pass(rank.to_node, bytes / cluster_.intra_node.bandwidth) + cluster_.intra_node.latency;
    } else {
      const double shared = cluster_.nics_per_node == 0 ? 1 : rank.stands_for;
      arrival = pass(nics_[rank.nic], shared * bytes / cluster_.inter_node.bandwidth);
      if (cluster_.rank_bandwidth > 0)
        arrival = std::max(arrival, pass(rank.to_nic, bytes / cluster_.rank_bandwidth));
      arrival += cluster_.inter_node.latency;
    }
    double& due = due_[transfer.wait];
    due = std::max(due, arrival);
  }

  const plan::Plan& plan_;
  const Topology& topology_;
  const Cluster& cluster_;
  Kernels kernels_;
  std::vector<SampledRank> ranks_;
  std::vector<Port> nics_;
  std::map<int, double> due_;  // by step that waits: time at which all has arrived
};

}  // namespace

double coarse_time(const plan::Plan& plan, const Cluster& cluster, double density) {
  if (plan.steps == 0) return 0;
  Lockstep ranks(plan, cluster, density);
  std::int64_t computes = 0;
  for (const int rank : {0, plan.problem.ranks() - 1})
    computes = std::max<std::int64_t>(computes, std::ssize(plan.step(rank, plan.steps / 2).computes));
  const int length = static_cast<int>(std::clamp<std::int64_t>(256 / (computes + 1), 2, 32));
  const int last = length + plan.problem.grid.ulysses_degree + plan.parts.count;
  const int between = plan.steps - length - last;
  if (between <= runs * length) return ranks.seconds(0, plan.steps);
  double seconds = 0;
  for (int run = 0; run < runs; ++run) {
    const int first = length + static_cast<int>(std::int64_t{between - length} * run / (runs - 1));
    seconds += ranks.seconds(first, first + length);
  }
  return ranks.seconds(0, length) + ranks.seconds(plan.steps - last, plan.steps) +
         seconds * between / (runs * length);
}

}  // namespace annulus::simulator
