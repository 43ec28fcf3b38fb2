#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "prediction/step/layer_traffic.hpp"

namespace annulus::prediction {

/// Seconds of attention in one layer and pass, over all sequences of the pass.
struct AttentionTime {
  double computing = 0;              ///< of the rank that computes longest
  double exposed_communication = 0;  ///< beyond that, until the last rank has ended
  double total() const { return computing + exposed_communication; }
  void add(const AttentionTime& more, double times = 1) {
    computing += times * more.computing;
    exposed_communication += times * more.exposed_communication;
  }
};

/// Which of the plans of a layer.
enum class AttentionPass : std::uint8_t {
  forward,
  backward,
  recompute  ///< of the earlier queries alone; of a layer without such a plan it takes no time
};

/// The simulated attention of the layers that share a mask, on the links of a cluster that need not be there.
class LayerAttention {
 public:
  /// `plans` run `times` times in a pass, one after the other: for each sequence that has documents of its
  /// own, as if they were the same. Without `overlap` as for ranks that wait for the transfers of a
  /// plan step before they compute (executor::Settings::overlap). `cluster` outlives this.
  LayerAttention(const executor::Plans& plans, int times, const simulator::Cluster& cluster,
                 bool overlap = true, simulator::Selected selected = {});

  /// Time of attention with the links for itself.
  const AttentionTime& alone(AttentionPass pass) const { return alone_[static_cast<std::size_t>(pass)]; }
  /// Time of attention beside `traffic`, of which what has not ended by then is left. Keeps what it has
  /// simulated.
  AttentionTime beside(AttentionPass pass, simulator::SideTraffic& traffic) const;
  const simulator::Cluster& cluster() const { return cluster_; }

 private:
  std::array<std::optional<plan::Plan>, 3> plans_;  // by pass
  int times_;
  const simulator::Cluster& cluster_;
  simulator::Selected selected_;
  std::array<AttentionTime, 3> alone_;
  mutable std::map<std::pair<AttentionPass, std::vector<double>>,
                   std::pair<AttentionTime, simulator::SideTraffic>>
      beside_;  // by pass and the numbers of the traffic
};

/// A part of what a rank does in a layer: computes outside of attention, then a pass of attention, if any.
struct LayerPart {
  double seconds = 0;
  std::optional<AttentionPass> attention = std::nullopt;
};

/// Seconds for which a rank waits in a layer. They do not overlap.
struct LayerWaits {
  double communication = 0;  ///< inside of attention
  double sharding = 0;       ///< then for gathers and sums of the shards
  double copies = 0;         ///< then for copies to or from the host
  void add(const LayerWaits& more, double times = 1) {
    communication += times * more.communication;
    sharding += times * more.sharding;
    copies += times * more.copies;
  }
};

/// One layer in one pass: its parts one after the other, and `traffic` from its begin on, all on one network.
/// What comes next waits until the copies have ended, and with `awaits_sharding` everything: then a layer is
/// never shorter than its parts alone, or than any queue alone, and where nothing shares a link exactly the
/// longest of these. What has not ended is left of `traffic`.
LayerWaits layer_waits(const LayerAttention& attention, std::span<const LayerPart> parts,
                       LayerTraffic& traffic, bool awaits_sharding = true);

}  // namespace annulus::prediction
