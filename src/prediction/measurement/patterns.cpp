#include <algorithm>
#include <array>
#include <limits>

#include "prediction/measurement/links.hpp"

namespace annulus::measurement {

using simulator::LinkClass;

namespace {

/// Places that every node has.
int common_places(const Topology& topology) {
  int places = std::numeric_limits<int>::max();
  for (int node = 0; node < topology.nodes(); ++node) places = std::min(places, topology.ranks_on(node));
  return places;
}

/// The node whose first two ranks are the pair inside a node: the first with more than one rank, or -1.
int node_of_pair(const Topology& topology) {
  for (int node = 0; node < topology.nodes(); ++node) {
    if (topology.ranks_on(node) > 1) return node;
  }
  return -1;
}

std::optional<Peers> pair(const Topology& topology, LinkClass link, int rank) {
  const int first = link == LinkClass::intra_node ? topology.first_rank(node_of_pair(topology)) : 0;
  const int second = link == LinkClass::intra_node ? first + 1 : topology.first_rank(1);
  if (rank == first) return Peers{second, second};
  if (rank == second) return Peers{first, first};
  return std::nullopt;
}

std::optional<Peers> all_inside(const Topology& topology, int rank) {
  const int node = topology.node(rank), ranks = topology.ranks_on(node), place = topology.local_rank(rank);
  if (ranks < 2) return std::nullopt;
  const int first = topology.first_rank(node);
  return Peers{first + (place + 1) % ranks, first + (place + ranks - 1) % ranks};
}

std::optional<Peers> all_between(const Topology& topology, int rank) {
  const int node = topology.node(rank), nodes = topology.nodes(), place = topology.local_rank(rank);
  if (place >= common_places(topology)) return std::nullopt;
  return Peers{topology.first_rank((node + 1) % nodes) + place,
               topology.first_rank((node + nodes - 1) % nodes) + place};
}

}  // namespace

std::string_view name_of(Pairing pattern) {
  constexpr std::array<std::string_view, pattern_count> names = {"one way", "both ways", "all", "ring"};
  return names[static_cast<std::size_t>(pattern)];
}

bool applies(const Topology& topology, LinkClass link, Pairing pattern) {
  if (link == LinkClass::intra_node) return pattern != Pairing::ring && node_of_pair(topology) >= 0;
  if (topology.nodes() < 2) return false;
  return pattern != Pairing::ring || topology.ranks() > topology.nodes();
}

std::optional<Peers> peers(const Topology& topology, LinkClass link, Pairing pattern, int rank) {
  if (!applies(topology, link, pattern)) return std::nullopt;
  const int ranks = topology.ranks();
  if (pattern == Pairing::ring) return Peers{(rank + 1) % ranks, (rank + ranks - 1) % ranks};
  if (pattern != Pairing::all) return pair(topology, link, rank);
  return link == LinkClass::intra_node ? all_inside(topology, rank) : all_between(topology, rank);
}

}  // namespace annulus::measurement
