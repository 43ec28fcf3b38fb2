#include <annulus/cluster/topology/topology.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <annulus/base/error.hpp>

namespace annulus {

Topology Topology::uniform(int ranks, int ranks_per_node) {
  require(ranks >= 1, "topology: {} ranks: at least one rank is needed", ranks);
  require(ranks <= max_ranks, "topology: {} ranks: at most {} are possible", ranks, max_ranks);
  require(ranks_per_node >= 1, "topology: {} ranks per node: give at least one", ranks_per_node);
  std::vector<int> ranks_on_node(static_cast<std::size_t>(ranks / ranks_per_node), ranks_per_node);
  if (const int rest = ranks % ranks_per_node; rest > 0) ranks_on_node.push_back(rest);
  return Topology(std::move(ranks_on_node));
}

Topology::Topology(std::vector<int> ranks_on_node) {
  require(!ranks_on_node.empty(),
          "topology: the list of nodes is empty: give the number of ranks of each node");
  std::int64_t ranks = 0;
  for (const int of_node : ranks_on_node) ranks += of_node;
  require(ranks <= max_ranks, "topology: {} ranks: at most {} are possible", ranks, max_ranks);
  node_of_.clear();
  first_rank_.clear();
  for (std::size_t node = 0; node < ranks_on_node.size(); ++node) {
    require(ranks_on_node[node] >= 1,
            "topology: node {} has {} ranks: every node needs at least one; leave out nodes without ranks",
            node, ranks_on_node[node]);
    first_rank_.push_back(static_cast<int>(node_of_.size()));
    node_of_.insert(node_of_.end(), static_cast<std::size_t>(ranks_on_node[node]), static_cast<int>(node));
  }
}

int Topology::ranks_on(int node) const {
  const int end = node + 1 < nodes() ? first_rank(node + 1) : ranks();
  return end - first_rank(node);
}

int Topology::most_ranks_on_a_node() const {
  int most = 0;
  for (int node = 0; node < nodes(); ++node) most = std::max(most, ranks_on(node));
  return most;
}

bool Topology::is_uniform() const {
  for (int node = 1; node < nodes(); ++node)
    if (ranks_on(node) != ranks_on(0)) return false;
  return true;
}

std::string Topology::to_string() const {
  const auto count = [](int n, const char* noun) {
    return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
  };
  if (is_uniform()) return fmt::format("{} × {}", count(nodes(), "node"), count(ranks_on(0), "rank"));
  std::vector<int> ranks_on_node;
  for (int node = 0; node < nodes(); ++node) ranks_on_node.push_back(ranks_on(node));
  return fmt::format("{} of {} ranks", count(nodes(), "node"), fmt::join(ranks_on_node, ", "));
}

}  // namespace annulus
