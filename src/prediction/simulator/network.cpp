#include "prediction/simulator/network.hpp"

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::simulator {

// Ports: way out and way in of each rank inside its node, then those of each NIC, then those of each rank to
// its NIC, then those of each rank to NIC and host.
Network::Network(const Cluster& cluster, const Topology& topology, std::optional<int> representatives,
                 Host host)
    : topology_(topology), representatives_(representatives.value_or(topology.ranks())) {
  const int ranks = representatives_;
  ports_.assign(2 * static_cast<std::size_t>(ranks), Port{cluster.intra_node.bandwidth});
  nic_ports_ = static_cast<int>(ports_.size());
  int nics = 0, nics_before = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == topology.first_rank(topology.node(rank))) nics_before = nics;
    nic_of_.push_back(nics_before + cluster.nic(topology, rank));
    nics = std::max(nics, nic_of_.back() + 1);
  }
  ports_.resize(ports_.size() + 2 * static_cast<std::size_t>(nics), Port{cluster.inter_node.bandwidth});
  const auto add_ports = [&](double bandwidth) {
    const int first = static_cast<int>(ports_.size());
    ports_.resize(ports_.size() + 2 * static_cast<std::size_t>(ranks), Port{bandwidth});
    return first;
  };
  if (cluster.rank_bandwidth > 0) rank_ports_ = add_ports(cluster.rank_bandwidth);
  // Each of them has been seen to carry both of these.
  if (host == Host::joined)
    host_ports_ = add_ports(std::max(cluster.memory.host_copy, cluster.inter_node.bandwidth));
}

int Network::start(int from, int to, std::int64_t bytes, double now) {
  NetworkFlow flow;
  take_ports(flow, from % representatives_, to % representatives_, topology_.same_node(from, to));
  return add(flow, static_cast<double>(bytes), now);
}

int Network::start_side(int rank, const SideFlow& side, double now) {
  ANNULUS_ASSERT(host_ports_ >= 0);
  NetworkFlow flow;
  flow.most = side.rate;
  flow.messages = side.messages;
  using enum SideFlow::Way;
  if (side.way == to_host || side.way == from_host)
    flow.ports[0] = host_ports_ + 2 * rank + (side.way == from_host ? 1 : 0);
  else
    take_ports(flow, rank, rank, side.way == intra_node);
  return add(flow, side.bytes, now);
}

void Network::take_ports(NetworkFlow& flow, int sender, int receiver, bool inside) const {
  const auto at = [](const std::vector<int>& list, int i) { return list[static_cast<std::size_t>(i)]; };
  std::size_t next = 0;
  const auto take = [&](int first, int out, int in) {
    flow.ports[next++] = first + 2 * out;
    flow.ports[next++] = first + 2 * in + 1;
  };
  if (inside) return take(0, sender, receiver);
  take(nic_ports_, at(nic_of_, sender), at(nic_of_, receiver));
  if (rank_ports_ >= 0) take(rank_ports_, sender, receiver);
  if (host_ports_ >= 0) take(host_ports_, sender, receiver);
}

int Network::add(NetworkFlow flow, double bytes, double now) {
  ANNULUS_ASSERT(now >= now_);
  now_ = now;
  const int index = static_cast<int>(flows_.size());
  flow.remaining = bytes;
  flow.since = now;
  flows_.push_back(flow);
  for (const int port : flow.ports) {
    if (port < 0) break;
    ports_[port].flows.push_back(index);
    ports_[port].messages += flow.messages;
    change(port);
  }
  return index;
}

double Network::remaining(int index, double now) const {
  const NetworkFlow& flow = flows_[static_cast<std::size_t>(index)];
  return std::max(0.0, flow.remaining - flow.rate * (now - flow.since));
}

void Network::change(int port) {
  Port& changed = ports_[port];
  if (!std::exchange(changed.changed, true)) changed_.push_back(port);
}

/// Gives the flows of all ports that have changed their new rates.
void Network::refresh() {
  for (const int port : changed_) {
    for (const int flow : ports_[port].flows) predict(flow);
  }
  for (const int port : changed_) ports_[port].changed = false;
  changed_.clear();
}

void Network::predict(int index) {
  NetworkFlow& flow = flows_[index];
  double rate = flow.most;
  for (const int port : flow.ports) {
    if (port < 0) break;
    const Port& p = ports_[port];
    rate = std::min(rate, p.bandwidth * flow.messages / p.messages);
  }
  if (rate == flow.rate) return;
  flow.remaining = std::max(0.0, flow.remaining - flow.rate * (now_ - flow.since));
  flow.since = now_;
  flow.rate = rate;
  const Ending ending{now_ + flow.remaining / rate, index};
  if (flow.place < 0) {
    flow.place = static_cast<int>(endings_.size());
    endings_.push_back(ending);
  }
  sift(ending, static_cast<std::size_t>(flow.place));
}

void Network::put(Ending ending, std::size_t place) {
  endings_[place] = ending;
  flows_[ending.flow].place = static_cast<int>(place);
}

/// Puts an ending where it belongs, in the place of the one at `place`.
void Network::sift(Ending ending, std::size_t place) {
  while (place > 0 && ending < endings_[(place - 1) / 2]) {
    put(endings_[(place - 1) / 2], place);
    place = (place - 1) / 2;
  }
  for (std::size_t below = 2 * place + 1; below < endings_.size(); below = 2 * place + 1) {
    if (below + 1 < endings_.size() && endings_[below + 1] < endings_[below]) ++below;
    if (ending < endings_[below]) break;
    put(endings_[below], place);
    place = below;
  }
  put(ending, place);
}

Network::Finished Network::next() {
  // A flow that ends now ends whatever the others do: of many that end together, as those of a gather do, the
  // rates are found once.
  if (const Finished ending = first(); ending.flow >= 0 && ending.time <= now_) return ending;
  refresh();
  return first();
}

Network::Finished Network::first() const {
  if (endings_.empty()) return {-1, std::numeric_limits<double>::infinity()};
  return {endings_.front().flow, endings_.front().time};
}

void Network::finish(const Finished& finished) {
  now_ = finished.time;
  NetworkFlow& flow = flows_[finished.flow];
  const Ending last = endings_.back();
  endings_.pop_back();
  if (last.flow != finished.flow) sift(last, static_cast<std::size_t>(flow.place));
  flow.place = -1;
  for (const int port : flow.ports) {
    if (port < 0) break;
    std::erase(ports_[port].flows, finished.flow);
    ports_[port].messages -= flow.messages;
    change(port);
  }
}

}  // namespace annulus::simulator
