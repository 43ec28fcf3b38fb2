#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/simulator/side_traffic.hpp"

namespace annulus::simulator {

/// Flows of bytes on the links of a cluster, as fluids. A flow is one message, or several
/// (SideFlow::messages). Every port (one direction of a link) gives each of its n messages an n-th of its
/// bandwidth, and a flow goes at the smallest of the shares that its ports give. Inside a node the ports are
/// the sender's way out and the receiver's way in, between nodes those of their NICs, and where a rank cannot
/// fill its NIC (Cluster::rank_bandwidth) also those of the ranks to their NICs. With Host::joined a rank has
/// one more in each direction, which joins it with its NIC and its host (PCIe, or what is in its place):
/// messages between nodes and copies share it. Time is in seconds and only goes forward.
class Network {
 public:
  enum class Host : std::uint8_t { apart, joined };
  /// With `representatives` ranks (a multiple of every node's size) in the place of all, the ports of rank r
  /// are those of rank r mod `representatives`: for traffic that is the same in all periods.
  Network(const Cluster& cluster, const Topology& topology, std::optional<int> representatives = std::nullopt,
          Host host = Host::apart);

  /// A flow of `bytes` from one rank to another sets out at `now`. Gives its number, counted from 0.
  int start(int from, int to, std::int64_t bytes, double now);

  /// A flow of a rank's own, which needs Host::joined. Numbers are counted with those of `start`.
  int start_side(int rank, const SideFlow& flow, double now);
  /// Bytes that a flow under way still has to send at `now`, which no flow's end lies before.
  double remaining(int flow, double now) const;

  struct Finished {
    int flow = 0;
    double time = 0;  ///< at which its last byte has left; it arrives a latency later
  };
  /// The flow that ends next if no other starts before, at or behind the last time seen; flow −1: none is
  /// under way. Flows that end at once come in the order of their numbers.
  Finished next();
  /// Takes the flow that `next` gave off its links.
  void finish(const Finished& finished);

 private:
  struct NetworkFlow {
    std::array<int, 6> ports = {-1, -1, -1, -1, -1, -1};    // of NICs or the node, then of ranks to them
    double most = std::numeric_limits<double>::infinity();  // bytes per second
    int messages = 1;                                       // that it consists of
    double remaining = 0;                                   // bytes, at `since`
    double rate = 0, since = 0;
    int place = -1;  // in endings_; −1: not there
  };
  struct Port {
    double bandwidth = 0;
    std::vector<int> flows = {};
    int messages = 0;  // of all its flows
    bool changed = false;
  };
  /// When a flow ends if no other starts before.
  struct Ending {
    double time;
    int flow;
    auto operator<=>(const Ending&) const = default;
  };

  int add(NetworkFlow flow, double bytes, double now);
  void take_ports(NetworkFlow& flow, int sender, int receiver, bool inside) const;
  Finished first() const;
  void put(Ending ending, std::size_t place);
  void sift(Ending ending, std::size_t place);
  void change(int port);
  void refresh();
  void predict(int index);

  std::vector<Port> ports_;
  int nic_ports_ = 0;        // index of the first NIC's way out
  int rank_ports_ = -1;      // index of the first rank's way out to its NIC; −1: ranks fill their NICs
  int host_ports_ = -1;      // index of the first rank's way out to NIC and host; −1: these are apart
  std::vector<int> nic_of_;  // of each rank, counted over all nodes
  const Topology& topology_;
  int representatives_;
  double now_ = 0;
  std::vector<NetworkFlow> flows_;
  std::vector<int> changed_;
  // A heap, the first ending on top, in which each flow has one place: rates change far more often than flows
  // end.
  std::vector<Ending> endings_;
};

}  // namespace annulus::simulator
