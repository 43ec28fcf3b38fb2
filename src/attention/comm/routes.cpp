#include "attention/comm/routes.hpp"

namespace annulus::comm {

namespace {

/// Messages of no bytes are left out: both sides know of them.
void send(CollectiveStage& stage, const std::byte* data, std::size_t bytes, int peer) {
  if (bytes > 0) stage.sends.push_back({data, bytes, peer});
}
void receive(CollectiveStage& stage, std::byte* data, std::size_t bytes, int peer) {
  if (bytes > 0) stage.receives.push_back({data, bytes, peer});
}

/// Calls use(to, from) for all others of `count`, the next one first, so that not all write to one at once.
template <class Use>
void for_each_other(int count, int mine, const Use& use) {
  for (int step = 1; step < count; ++step) use((mine + step) % count, (mine - step + count) % count);
}

/// A rank's place among nodes of equal size.
struct NodePlace {
  NodePlace(const Topology& topology, int rank)
      : nodes(topology.nodes()),
        locals(topology.ranks_on(0)),
        node(topology.node(rank)),
        local(topology.local_rank(rank)) {}
  int rank(int of_node, int of_local) const { return of_node * locals + of_local; }

  int nodes, locals;  ///< how many there are
  int node, local;    ///< this rank's
};

std::size_t size(int number) {
  return static_cast<std::size_t>(number);
}

}  // namespace

bool in_two_stages(const Topology& topology) {
  return topology.nodes() > 1 && topology.is_uniform() && topology.ranks_on(0) > 1;
}

std::vector<CollectiveStage> GatherRoute::stages(const Topology& topology, int rank) const {
  if (!in_two_stages(topology)) {
    CollectiveStage all;
    for_each_other(topology.ranks(), rank, [&](int to, int from) {
      send(all, own, bytes(rank), to);
      receive(all, place(from), bytes(from), from);
    });
    return {all};
  }
  const NodePlace my(topology, rank);
  std::vector<CollectiveStage> stages(2);
  for_each_other(my.nodes, my.node, [&](int to, int from) {
    const int source = my.rank(from, my.local);
    send(stages[0], own, bytes(rank), my.rank(to, my.local));
    receive(stages[0], place(source), bytes(source), source);
  });
  for_each_other(my.locals, my.local, [&](int to, int from) {
    for (int node = 0; node < my.nodes; ++node) {
      const int mine = my.rank(node, my.local), theirs = my.rank(node, from);
      send(stages[1], mine == rank ? own : place(mine), bytes(mine), my.rank(my.node, to));
      receive(stages[1], place(theirs), bytes(theirs), my.rank(my.node, from));
    }
  });
  return stages;
}

std::size_t contribution_blocks(const Topology& topology) {
  const std::size_t ranks = size(topology.ranks());
  return ranks - 1 + (in_two_stages(topology) ? ranks - size(topology.ranks_on(0)) : 0);
}

std::vector<CollectiveStage> ContributionRoute::stages(const Topology& topology, int rank) const {
  const auto landed = [&](int from) { return memory + size(from > rank ? from - 1 : from) * bytes(rank); };
  if (!in_two_stages(topology)) {
    CollectiveStage all;
    for_each_other(topology.ranks(), rank, [&](int to, int from) {
      send(all, block(to), bytes(to), to);
      receive(all, landed(from), bytes(rank), from);
    });
    return {all};
  }
  const NodePlace my(topology, rank);
  // Behind what lands: what goes on to this rank's partners, (nodes, ranks of a node) blocks of this node's
  // ranks, those of one partner next to each other. Nothing goes on to this node.
  std::vector<std::byte*> relay(size(my.nodes));
  std::byte* next = memory + size(topology.ranks() - 1) * bytes(rank);
  for (int node = 0; node < my.nodes; ++node) {
    relay[size(node)] = next;
    if (node != my.node) next += size(my.locals) * bytes(my.rank(node, my.local));
  }
  std::vector<CollectiveStage> stages(2);
  for_each_other(my.locals, my.local, [&](int to, int from) {
    const int source = my.rank(my.node, from), target = my.rank(my.node, to);
    for (int node = 0; node < my.nodes; ++node) {
      const int owner = my.rank(node, my.local), other = my.rank(node, to);
      send(stages[0], block(other), bytes(other), target);
      receive(stages[0], node == my.node ? landed(source) : relay[size(node)] + size(from) * bytes(owner),
              bytes(owner), source);
    }
  });
  for_each_other(my.nodes, my.node, [&](int to, int from) {
    const int owner = my.rank(to, my.local), source = my.rank(from, my.local);
    // This rank's own block lies elsewhere than those that it hands on, before and behind it.
    const std::size_t before = size(my.local), behind = size(my.locals - my.local - 1);
    send(stages[1], relay[size(to)], before * bytes(owner), owner);
    send(stages[1], block(owner), bytes(owner), owner);
    send(stages[1], relay[size(to)] + (before + 1) * bytes(owner), behind * bytes(owner), owner);
    receive(stages[1], landed(my.rank(from, 0)), before * bytes(rank), source);
    receive(stages[1], landed(source), bytes(rank), source);
    receive(stages[1], landed(source + 1), behind * bytes(rank), source);
  });
  return stages;
}

}  // namespace annulus::comm
