#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "prediction/measurement/fit.hpp"
#include "prediction/measurement/sampling.hpp"

namespace annulus::measurement {

/// Who sends to whom.
enum class Pairing : std::uint8_t {
  one_way,    ///< the first rank to the next one (of its node; or to the first one of the next node) and
              ///< back, alone; half the time of both counts
  both_ways,  ///< the two ranks of one_way, both at the same time, alone
  all,        ///< every rank at once, in rings: to the next one of its node, or to the rank with its place on
              ///< the next node. Places that not every node has stay idle.
  ring,       ///< every rank at once to the next rank, whatever its node: the ring that ignores nodes
};
inline constexpr int pattern_count = 4;

/// "one way", "both ways", "all", "ring"
std::string_view name_of(Pairing pattern);

/// With whom a rank exchanges messages.
struct Peers {
  int to = 0, from = 0;
  friend bool operator==(const Peers&, const Peers&) = default;
};

/// The peers of a rank in a pattern; nothing for ranks that stay idle. `ring` belongs to the links between
/// nodes.
std::optional<Peers> peers(const Topology& topology, simulator::LinkClass link, Pairing pattern, int rank);

/// Links of the class exist, and the pattern is another one than those before it.
bool applies(const Topology& topology, simulator::LinkClass link, Pairing pattern);

struct LinkOptions {
  std::int64_t min_bytes = std::int64_t{1} << 10;  ///< the smallest message; the next are 4 times as long
  std::int64_t max_bytes = std::int64_t{1} << 28;  ///< none is longer
  Sampling sampling;
  std::int64_t memory = 0;  ///< bytes free on each host; 0: as many as the host says. Buffers take half of it
  std::vector<Pairing> patterns = {Pairing::one_way, Pairing::both_ways, Pairing::all, Pairing::ring};

  /// Throws Error naming the option (as on the command line) whose value makes no sense.
  void check() const;
};

/// What a cluster needs and not more, in about a second: messages of 4 KB to 16 MB.
LinkOptions quick_links();

/// Messages of one size in one pattern.
struct LinkPoint {
  simulator::LinkClass link = simulator::LinkClass::intra_node;
  Pairing pattern = Pairing::one_way;
  std::int64_t bytes = 0;
  Sample seconds;  ///< of a message

  /// Bytes per second that one sender reaches.
  double bandwidth() const { return static_cast<double>(bytes) / seconds.median; }
};

struct LinkMeasurement {
  std::vector<LinkPoint> points;
  std::vector<std::string> notes;  ///< what was left out, and why

  /// Sizes and median times of one pattern.
  std::vector<MessageTiming> timings(simulator::LinkClass link, Pairing pattern) const;
};

/// Sends messages through Communicator::exchange between buffers in the memory of the default execution
/// space, as runs do. Sizes whose buffers do not fit, and those that would take longer than
/// sampling.seconds a message, are left out with a note. One rank has no links. Collective; all ranks get the
/// same.
LinkMeasurement measure_links(comm::Communicator& communicator, const LinkOptions& options);

/// The host's name of every rank. Collective.
std::vector<std::string> host_names(comm::Communicator& communicator);

}  // namespace annulus::measurement
