#include "attention/comm/reductions/split.hpp"

#include <algorithm>
#include <annulus/base/error.hpp>
#include <map>
#include <set>

namespace annulus::comm {

namespace {

Topology topology_of(const std::vector<int>& members, const Topology& parent, int color) {
  std::vector<int> ranks_on_node;
  std::set<int> seen;
  int last = -1;
  for (const int member : members) {
    const int node = parent.node(member);
    if (node == last) {
      ++ranks_on_node.back();
      continue;
    }
    require(seen.insert(node).second,
            "split: the keys of colour {} separate ranks of node {}: order ranks of one node next to each "
            "other, for example with key = rank",
            color, node);
    ranks_on_node.push_back(1);
    last = node;
  }
  return Topology(std::move(ranks_on_node));
}

}  // namespace

SplitGroup split_group(std::span<const ColorKey> wishes, const Topology& parent, int rank) {
  std::map<int, std::vector<int>> groups;
  for (int r = 0; r < parent.ranks(); ++r) {
    const int color = wishes[static_cast<std::size_t>(r)].color;
    require(color >= 0, "split: rank {} has colour {}: colours start at 0", r, color);
    groups[color].push_back(r);
  }
  SplitGroup mine;
  for (auto& [color, members] : groups) {
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return wishes[static_cast<std::size_t>(a)].key < wishes[static_cast<std::size_t>(b)].key;
    });
    Topology topology = topology_of(members, parent, color);
    if (color != wishes[static_cast<std::size_t>(rank)].color) continue;
    const auto place = std::find(members.begin(), members.end(), rank);
    mine = {members, static_cast<int>(place - members.begin()), std::move(topology)};
  }
  return mine;
}

Topology topology_of_machines(std::span<const int> lowest_rank) {
  std::vector<int> ranks_on_node;
  for (std::size_t rank = 0; rank < lowest_rank.size(); ++rank) {
    const int lowest = lowest_rank[rank];
    if (lowest == static_cast<int>(rank)) {
      ranks_on_node.push_back(1);
      continue;
    }
    require(lowest_rank[rank - 1] == lowest,
            "ranks {} and {} are on one machine, rank {} between them is not: start consecutive ranks on one "
            "machine (mpirun --map-by slot, srun --distribution=block), or give the number of ranks per node",
            lowest, rank, rank - 1);
    ++ranks_on_node.back();
  }
  return Topology(std::move(ranks_on_node));
}

}  // namespace annulus::comm
