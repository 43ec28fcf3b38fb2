#include "simulate/estimate.hpp"

#include <algorithm>
#include <cmath>

#include <annulus/base/division.hpp>
#include <annulus/base/parse_number.hpp>
#include <annulus/plan/schedules.hpp>

namespace annulus::simulate {

using plan::Pass;
using plan::Tensor;

namespace {

constexpr int most_sampled = 16;

/// Some of `count` places, first and last among them, evenly spread.
std::vector<int> sample(int count) {
  const int taken = std::min(count, most_sampled);
  std::vector<int> places;
  for (int i = 0; i < taken; ++i)
    places.push_back(static_cast<int>(std::int64_t{i} * (count - 1) / std::max(taken - 1, 1)));
  return places;
}

/// Of a ring of Ulysses groups.
WorkByDistance sample_work(const plan::Problem& problem, int ring_degree) {
  std::vector<PositionMap> shards;
  for (int c = 0; c < ring_degree; ++c)
    shards.push_back(problem.taking_part(problem.layout.shard(problem.mask.tokens(), ring_degree, c)));
  WorkByDistance work;
  work.contiguous = problem.layout.kind() == Layout::Kind::contiguous;
  work.pairs.resize(shards.size());
  for (const int q : sample(ring_degree)) {
    std::int64_t sum = 0;
    for (int hop = 0; hop < ring_degree; ++hop) {
      const PositionMap& keys = shards[static_cast<std::size_t>((q - hop + ring_degree) % ring_degree)];
      const std::int64_t pairs = problem.mask.pairs(shards[static_cast<std::size_t>(q)], keys);
      work.dense = work.dense && pairs > 0;
      std::int64_t& most = work.pairs[static_cast<std::size_t>(hop)];
      most = std::max(most, pairs);
      sum += pairs;
    }
    work.most = std::max(work.most, sum);
    work.rows = std::max(work.rows, shards[static_cast<std::size_t>(q)].count);
  }
  return work;
}

}  // namespace

std::vector<int> WorkByDistance::hops() const {
  std::vector<int> hops = {0};
  for (int hop = 1; hop < static_cast<int>(pairs.size()); ++hop) {
    if (pairs[static_cast<std::size_t>(hop)] > 0) hops.push_back(hop);
  }
  return hops;
}

double WorkByDistance::share(std::int64_t of) const {
  if (!contiguous) return 1;
  return std::min(
      1.0, std::sqrt(2.0 * static_cast<double>(of)) / static_cast<double>(std::max<std::int64_t>(rows, 1)));
}

Estimator::Estimator(const plan::Problem& problem, const Cluster& cluster, double density)
    : problem_(problem), cluster_(cluster), density_(density) {
  problem_.grid = {};
}

Estimator::Estimate Estimator::estimate(std::string_view schedule, Pass pass) {
  const std::string_view name = schedule.substr(0, schedule.find(':'));
  const bool queries = pass == Pass::backward;  // travel in Burst's backward
  if (name == "burst") return ring(pass, queries);
  if (name == "topology-burst") return rings(pass, queries, node_size(), false);
  if (name == "hierarchical") return rings(pass, false, node_size(), false);
  if (name == "double-ring") {
    const int window = name == schedule
                           ? node_size()
                           : parse_number<int>(schedule.substr(name.size() + 1)).value_or(node_size());
    return rings(pass, false, std::clamp(window, 1, ranks()), true);
  }
  if (name == "all-gather") return all_gather(pass);
  if (name == "helper-worker") return helper_worker(pass);
  if (name == "ulysses") return heads_exchanged(pass, {ranks(), plan::Placement::head_first});
  if (name == "hybrid") return heads_exchanged(pass, plan::arranged_for(schedule, problem_).grid);
  return ring(pass, false);
}

const WorkByDistance& Estimator::work_by_distance(int ring_degree) {
  const auto [found, made] = work_.try_emplace(ring_degree);
  if (made) found->second = sample_work(problem_, ring_degree);
  return found->second;
}

double Estimator::kernel(const WorkByDistance& work, Pass pass, std::int64_t pairs) const {
  return density_ * flops(problem_, pass, pairs) /
         cluster_.rate(pass, problem_.head_dim, work.rows, problem_.activation);
}

double Estimator::compute(const WorkByDistance& work, Pass pass, int hop, int heads) const {
  return kernel(work, pass, heads * work.pairs[static_cast<std::size_t>(hop)]);
}

// --- Bytes and ways ----------------------------------------------------------------------------------------

double Estimator::bytes(double rows, double q_heads, double kv_heads,
                        std::initializer_list<Tensor> tensors) const {
  double sum = 0;
  for (const Tensor tensor : tensors) {
    const double heads = plan::is_query_side(tensor) ? q_heads : kv_heads;
    const double width = plan::is_row_statistic(tensor) ? 1 : problem_.head_dim;
    sum += rows * heads * width * problem_.batch * static_cast<double>(size_of(problem_.wire(tensor)));
  }
  return sum;
}

Estimator::Bytes Estimator::circulated(Pass pass, bool queries, double rows, double q_heads,
                                       double kv_heads) const {
  const auto of = [&](std::initializer_list<Tensor> tensors) {
    return bytes(rows, q_heads, kv_heads, tensors);
  };
  if (queries) return {of({Tensor::q, Tensor::d_o, Tensor::lse, Tensor::d}), of({Tensor::dq})};
  return {of({Tensor::k, Tensor::v}), pass == Pass::forward ? 0 : of({Tensor::dk, Tensor::dv})};
}

int Estimator::node_size() const {
  const Topology& topology = problem_.topology;
  return topology.is_uniform() ? topology.ranks_on(0) : ceil_divide(ranks(), topology.nodes());
}

Estimator::Way Estimator::inter_node(int ranks) const {
  const int nics = cluster_.nics_per_node == 0 ? node_size() : cluster_.nics_per_node;
  const double share = cluster_.inter_node.bandwidth / ceil_divide(std::max(ranks, 1), nics);
  const double most = cluster_.rank_bandwidth > 0 ? cluster_.rank_bandwidth : share;
  return {std::min(share, most), cluster_.inter_node.latency};
}

Estimator::Way Estimator::way(int distance) const {
  const int near = std::min(distance, ranks() - distance);
  return problem_.topology.nodes() == 1 ? intra_node() : inter_node(std::min(near, node_size()));
}

std::int64_t Estimator::steps(const WorkByDistance& work, int rounds, int period) const {
  return std::int64_t{work.dense ? period : ranks()} * rounds;
}

// --- Schedules ---------------------------------------------------------------------------------------------

/// One flat ring, whose slowest links set the pace.
Estimator::Estimate Estimator::ring(Pass pass, bool queries) {
  const WorkByDistance& work = work_by_distance(ranks());
  const Bytes shard =
      circulated(pass, queries, static_cast<double>(work.rows), problem_.heads, problem_.kv_heads);
  const Way link = way(1);
  const std::vector<int> hops = work.hops();
  const int rounds = static_cast<int>(hops.size());
  double seconds = 0;
  for (int t = 0; t < rounds; ++t) {
    const double moved = (t + 1 < rounds ? shard.inputs : 0) + (t >= 2 ? shard.sums : 0);
    seconds +=
        std::max(compute(work, pass, hops[static_cast<std::size_t>(t)], problem_.heads), link.seconds(moved));
  }
  if (rounds > 1) seconds += link.seconds(shard.sums);
  return {seconds, steps(work, rounds, node_size())};
}

/// A ring on each node, rings between nodes on all NICs at the same time. A loop takes as long as its
/// rounds or as the way to the next inner ring, whichever is longer.
Estimator::Estimate Estimator::rings(Pass pass, bool queries, int group, bool sums_alone) {
  const WorkByDistance& work = work_by_distance(ranks());
  const Bytes shard =
      circulated(pass, queries, static_cast<double>(work.rows), problem_.heads, problem_.kv_heads);
  const std::vector<int> hops = work.hops();
  const int groups = std::max(ranks() / group, 1), reach = static_cast<int>(hops.size());
  const int loops = std::min(groups, 1 + ceil_divide(reach - 1, group));
  const Way inner = group <= node_size() ? intra_node() : way(1), outer = way(group);
  const double overlapped = sums_alone ? 0 : shard.sums, alone = sums_alone ? shard.sums : 0;
  double seconds = 0;
  int rounds = 0;
  for (int loop = 0; loop < loops; ++loop) {
    const int turns = loop == 0 ? std::min(group, reach) : group;
    rounds += turns;
    double loop_seconds = 0;
    for (int t = 0; t < turns; ++t) {
      const int hop = hops[static_cast<std::size_t>(std::min(loop * group + t, reach - 1))];
      const double moved = (t + 1 < turns ? shard.inputs : 0) + (t >= 2 ? overlapped : 0);
      loop_seconds += std::max(compute(work, pass, hop, problem_.heads), inner.seconds(moved));
      if (t > 0) loop_seconds += inner.seconds(alone);
    }
    const double moved = (loop + 1 < loops ? shard.inputs : 0) + (loop >= 2 ? overlapped : 0);
    seconds += std::max(loop_seconds, outer.seconds(moved));
    if (loop > 0) seconds += outer.seconds(alone);
  }
  if (loops > 1) seconds += outer.seconds(overlapped);
  if (rounds > 1) seconds += inner.seconds(overlapped);
  return {seconds, steps(work, rounds * (sums_alone ? 2 : 1), std::max(group, node_size()))};
}

double Estimator::scatter(const WorkByDistance& work, double bytes) const {
  const int node = problem_.topology.nodes() == 1 ? ranks() : node_size();
  double near = 0, far = 0;
  for (int hop = 1; hop < ranks(); ++hop) {
    const std::int64_t pairs = work.pairs[static_cast<std::size_t>(hop)];
    if (pairs == 0) continue;
    const double share = work.share(pairs);
    const double leaving = std::min(std::min(hop, ranks() - hop), node) / static_cast<double>(node);
    const double out = node == ranks() ? 0 : leaving;  // share of the ranks whose message leaves the node
    near += (1 - out) * share * bytes;
    far += out * share * bytes;
  }
  return std::max(intra_node().seconds(near), inter_node(node_size()).seconds(far));
}

/// Everything that is needed comes at once; in a backward, gradients go back shard by shard.
Estimator::Estimate Estimator::all_gather(Pass pass) {
  const WorkByDistance& work = work_by_distance(ranks());
  const Bytes shard =
      circulated(pass, false, static_cast<double>(work.rows), problem_.heads, problem_.kv_heads);
  double computes = 0;
  int rounds = 1;
  for (int hop = 1; hop < ranks(); ++hop) {
    const std::int64_t pairs = work.pairs[static_cast<std::size_t>(hop)];
    if (pairs == 0) continue;
    ++rounds;
    computes +=
        std::max(compute(work, pass, hop, problem_.heads), way(hop).seconds(work.share(pairs) * shard.sums));
  }
  const double own = compute(work, pass, 0, problem_.heads);
  if (pass == Pass::forward) computes = kernel(work, pass, problem_.heads * work.most) - own;
  const double tail = rounds > 1 ? way(rounds - 1).seconds(shard.sums) : 0;
  return {std::max(own, scatter(work, shard.inputs)) + computes + tail, steps(work, 2 * rounds, node_size())};
}

/// Rounds of whole shard pairs, for half the hops; what the pass sends goes straight from rank to rank.
Estimator::Estimate Estimator::helper_worker(Pass pass) {
  const WorkByDistance& work = work_by_distance(ranks());
  const double rows = static_cast<double>(work.rows);
  const auto of = [&](std::initializer_list<Tensor> tensors) {
    return bytes(rows, problem_.heads, problem_.kv_heads, tensors);
  };
  // Ranks with early tokens send keys and the results of helping, ranks with late ones queries and dK, dV.
  const double keys = of({Tensor::k, Tensor::v});
  const double sent =
      pass == Pass::forward
          ? std::max(keys + of({Tensor::o, Tensor::lse}), of({Tensor::q}))
          : std::max(keys + of({Tensor::dq}),
                     of({Tensor::q, Tensor::d_o, Tensor::lse, Tensor::d, Tensor::dk, Tensor::dv}));
  const Bytes alone = circulated(pass, false, rows, problem_.heads, problem_.kv_heads);
  double seconds = 0;
  int rounds = 0, last = 0;
  const auto helped = [&](int hop) {
    return work.pairs[static_cast<std::size_t>((ranks() - hop) % ranks())];
  };
  const auto pairs_at = [&](int hop) {
    return std::max(work.pairs[static_cast<std::size_t>(hop)], helped(hop));
  };
  for (int hop = ranks() / 2; hop > 0 && last == 0; --hop) last = pairs_at(hop) > 0 ? hop : 0;
  for (int hop = 0; hop <= last; ++hop) {
    if (hop > 0 && pairs_at(hop) == 0) continue;
    ++rounds;
    const double computing = kernel(work, pass, problem_.heads * pairs_at(hop));
    double moving = 0;
    if (hop < last) {
      const double all = helped(hop + 1) > 0 ? sent : alone.inputs + alone.sums;
      moving = way(hop + 1).seconds(work.share(pairs_at(hop + 1)) * all);
    }
    seconds += std::max(computing, moving);
  }
  if (rounds > 1) seconds += way(last).seconds(of({Tensor::o, Tensor::lse}));
  return {seconds, std::int64_t{ranks()} * rounds};
}

/// Heads are exchanged in each Ulysses group, shards of whole groups go round a ring.
Estimator::Estimate Estimator::heads_exchanged(Pass pass, const plan::Grid& grid) {
  const int size = grid.ulysses_degree, ring_degree = grid.ring_degree(ranks());
  if (size == 1) return ring(pass, false);
  const WorkByDistance& work = work_by_distance(ring_degree);
  const int heads = ceil_divide(problem_.heads, size), kv_heads = ceil_divide(problem_.kv_heads, size);
  const double rows = static_cast<double>(work.rows), own_rows = rows / size;
  const bool head_first = grid.placement == plan::Placement::head_first;
  const int member = head_first ? 1 : ring_degree, neighbour = head_first ? size : 1;

  // What a rank sends to the others of its group, of which some share its node.
  const int near = std::min(size, std::max(1, problem_.topology.nodes() == 1 ? size : node_size() / member));
  const auto exchange = [&](std::initializer_list<Tensor> tensors) {
    const double to_one = bytes(own_rows, heads, kv_heads, tensors);
    return std::max(intra_node().seconds(to_one * (near - 1)),
                    inter_node(node_size()).seconds(to_one * (size - near)));
  };
  const bool forward = pass == Pass::forward;
  const double before =
      forward ? exchange({Tensor::q, Tensor::k, Tensor::v})
              : exchange({Tensor::q, Tensor::d_o, Tensor::lse, Tensor::d, Tensor::k, Tensor::v});
  // Results of queries return in turns; what comes last is exposed.
  const double last = (forward ? exchange({Tensor::o, Tensor::lse}) : exchange({Tensor::dq})) / (size - 1);
  const double behind = forward ? 0 : exchange({Tensor::dk, Tensor::dv});

  const Bytes shard = circulated(pass, false, rows, heads, kv_heads);
  const bool ring_inside = problem_.topology.nodes() == 1 ||
                           (!head_first && ring_degree <= node_size() && node_size() % ring_degree == 0);
  const Way link = ring_inside ? intra_node() : way(neighbour);
  const std::vector<int> hops = work.hops();
  const int rounds = static_cast<int>(hops.size());
  double seconds = std::max(before, compute(work, pass, 0, heads) / (size * size)) + last + behind;
  for (int t = 0; t < rounds; ++t) {
    const double moved = (t + 1 < rounds ? shard.inputs : 0) + (t >= 2 ? shard.sums : 0);
    seconds += std::max(compute(work, pass, hops[static_cast<std::size_t>(t)], heads), link.seconds(moved));
  }
  if (rounds > 1) seconds += link.seconds(shard.sums);
  const bool repeats = work.dense && head_first;
  const std::int64_t representatives = repeats ? std::max(size, node_size()) : ranks();
  return {seconds, representatives * (rounds + size)};
}

}  // namespace annulus::simulate
