#include "attention/comm/routes.hpp"

#include <bit>

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

bool combines_in_two_stages(const Topology& topology, DType type) {
  return in_two_stages(topology) && std::has_single_bit(static_cast<unsigned>(topology.ranks_on(0))) &&
         size_of(type) > 2;
}

ReductionRoute::NodeContributions ReductionRoute::by_node(const Topology& topology, int rank) const {
  const NodePlace my(topology, rank);
  NodeContributions all;
  const std::byte* next = memory;
  for (int node = 0; node < my.nodes; ++node) {
    const int partner = my.rank(node, my.local);
    all.inside.push_back({.first = next,
                          .stride = bytes(partner),
                          .ranks = my.locals,
                          .rank = my.local,
                          .own = block(partner)});
    next += size(my.locals - 1) * bytes(partner);
  }
  all.between = {.first = next,
                 .stride = bytes(rank),
                 .ranks = my.nodes,
                 .rank = my.node,
                 .own = all.inside[size(my.node)].first};
  return all;
}

Contributions ReductionRoute::arrived(const Topology& topology, int rank) const {
  if (combines_in_two_stages(topology, type)) return by_node(topology, rank).between;
  return {
      .first = memory, .stride = bytes(rank), .ranks = topology.ranks(), .rank = rank, .own = block(rank)};
}

std::vector<CollectiveStage> ReductionRoute::stages(const Topology& topology, int rank) const {
  /// Where others' contributions land.
  const auto place = [](const Contributions& all, int of) { return const_cast<std::byte*>(all.of(of)); };
  if (!combines_in_two_stages(topology, type)) {
    const Contributions all = arrived(topology, rank);
    CollectiveStage stage;
    for_each_other(topology.ranks(), rank, [&](int to, int from) {
      send(stage, block(to), bytes(to), to);
      receive(stage, place(all, from), bytes(rank), from);
    });
    return {stage};
  }
  const NodePlace my(topology, rank);
  const NodeContributions all = by_node(topology, rank);
  std::vector<CollectiveStage> stages(2);
  for_each_other(my.locals, my.local, [&](int to, int from) {
    for (int node = 0; node < my.nodes; ++node) {
      const Contributions& inside = all.inside[size(node)];
      const int other = my.rank(node, to);
      send(stages[0], block(other), bytes(other), my.rank(my.node, to));
      receive(stages[0], place(inside, from), inside.stride, my.rank(my.node, from));
    }
  });
  stages[1].before = [inside = all.inside, type = type, op = op](const Queue& queue) {
    for (const Contributions& of : inside)
      reduce_in_order(queue, type, op, of, const_cast<std::byte*>(of.first), of.stride / size_of(type));
  };
  for_each_other(my.nodes, my.node, [&](int to, int from) {
    const Contributions& inside = all.inside[size(to)];
    send(stages[1], inside.first, inside.stride, my.rank(to, my.local));
    receive(stages[1], place(all.between, from), bytes(rank), my.rank(from, my.local));
  });
  return stages;
}

}  // namespace annulus::comm
