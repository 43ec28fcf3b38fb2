#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "cluster/topology/job.hpp"

namespace annulus {
namespace {

/// Nodes in the order in which the ranks come to them first; without ranks the job's.
std::vector<int> node_order(const Job& job) {
  std::vector<int> order;
  if (job.node_of_rank.empty()) {
    order.resize(job.hosts.size());
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<bool> seen(job.hosts.size(), false);
  for (const int node : job.node_of_rank) {
    if (!seen[node]) order.push_back(node);
    seen[node] = true;
  }
  return order;
}

/// The first rank whose node had ranks before, but not the rank just before it; −1: there is none.
int first_scattered(const Job& job) {
  std::vector<bool> seen(job.hosts.size(), false);
  for (std::size_t rank = 0; rank < job.node_of_rank.size(); ++rank) {
    const int node = job.node_of_rank[rank];
    if (rank > 0 && job.node_of_rank[rank - 1] == node) continue;
    if (seen[node]) return static_cast<int>(rank);
    seen[node] = true;
  }
  return -1;
}

std::vector<int> counts(const Job& job) {
  std::vector<int> ranks(job.hosts.size(), 0);
  for (const int node : job.node_of_rank) ++ranks[node];
  return ranks;
}

/// Times that neighbouring nodes (the last and the first too) hang on different switches.
int switch_crossings(const Job& job, const std::vector<int>& order) {
  int crossings = 0;
  for (std::size_t i = 0; i < order.size(); ++i)
    crossings += job.leaf(order[i]) != job.leaf(order[(i + 1) % order.size()]) ? 1 : 0;
  return crossings;
}

}  // namespace

std::vector<int> switch_order(const Job& job) {
  std::vector<int> order = node_order(job);
  std::vector<std::string> seen;  // paths of switches, every level of them, in the order of their first node
  const auto path_of = [&](int node) {
    const int leaf = job.leaf(node);
    return leaf < 0 ? std::string() : job.leaves[leaf].path;
  };
  // The keys of a node: for each level, when its switch there was first met.
  const auto keys_of = [&](int node) {
    std::vector<std::size_t> keys;
    const std::string path = path_of(node);
    for (std::size_t end = path.find('.');; end = path.find('.', end + 1)) {
      const std::string part = path.substr(0, end);
      const auto found = std::ranges::find(seen, part);
      keys.push_back(static_cast<std::size_t>(found - seen.begin()));
      if (found == seen.end()) seen.push_back(part);
      if (end == path.npos) return keys;
    }
  };
  std::vector<std::pair<std::vector<std::size_t>, int>> sorted;
  for (const int node : order) sorted.emplace_back(keys_of(node), node);
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = sorted[i].second;
  return order;
}

std::vector<Diagnostic> check_placement(const Job& job) {
  std::vector<Diagnostic> diagnostics;
  if (const int rank = first_scattered(job); rank >= 0) {
    diagnostics.push_back(
        {.text = fmt::format(
             "ranks of {} are not consecutive (rank {} is there, rank {} is not): what travels inside a node "
             "would cross the "
             "network; start them with srun --distribution=block, or mpirun --map-by slot",
             job.hosts[job.node_of_rank[rank]], rank, rank - 1)});
  }
  const std::vector<int> ranks = counts(job);
  for (std::size_t node = 1; node < ranks.size() && job.ranks() > 0; ++node) {
    if (ranks[node] == ranks[0]) continue;
    diagnostics.push_back(
        {.text = fmt::format("{} has {} ranks and {} has {}: ranks do equal work, so that the "
                             "fuller node decides; ask for equally many (--ntasks-per-node)",
                             job.hosts[0], ranks[0], job.hosts[node], ranks[node])});
    break;
  }
  const std::vector<int> order = node_order(job), better = switch_order(job);
  const int crossings = switch_crossings(job, order), least = switch_crossings(job, better);
  if (crossings > least) {
    std::vector<std::string> names;
    for (const int node : better) names.push_back(job.hosts[node]);
    diagnostics.push_back({.text = fmt::format("the ranks go back and forth between switches ({} crossings "
                                               "around the ring of nodes, {} would do): order them "
                                               "{} (annulus-topology --launch --hostfile FILE)",
                                               crossings, least, fmt::join(names, ", "))});
  }
  return diagnostics;
}

std::optional<Topology> topology_of(const Job& job) {
  if (job.node_of_rank.empty() || first_scattered(job) >= 0) return std::nullopt;
  const std::vector<int> ranks = counts(job);
  std::vector<int> on_node;
  for (const int node : node_order(job)) on_node.push_back(ranks[node]);
  return Topology(on_node);
}

}  // namespace annulus
