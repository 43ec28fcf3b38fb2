#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/step/layer_time.hpp"
#include "prediction/step/setting.hpp"

namespace annulus::prediction {

/// Seconds of an optimizer step of the slowest rank, by part. Parts do not overlap: what hides behind compute
/// is in none of them.
struct UpdateTime {
  double gemms = 0;                  ///< products of forward and backward, the LM head's too
  double attention = 0;              ///< kernels of forward and backward
  double recompute_gemms = 0;        ///< products that the backward pass makes again
  double recompute_attention = 0;    ///< attention that it computes again
  double elementwise = 0;            ///< norms, rotary positions, SwiGLU, cross-entropy: bound by memory
  double exposed_communication = 0;  ///< of attention
  double exposed_sharding = 0;       ///< gathers of weights, sums of gradients
  double host_copies = 0;            ///< of offloaded activations, and of the offloaded optimizer's step
  double optimizer = 0;              ///< AdamW and the norm of gradients
  double total() const;
  /// Names, as in JSON, and seconds, in this order.
  std::vector<std::pair<std::string_view, double>> parts() const;
};

/// `share` is that of the rank with the most rows, `attention` that of each layer. Counts operations and
/// bytes over the rates of `cluster`: kernels' launches, the data and what transfers take from kernels beside
/// them count as nothing. All that travels in a layer (attention's messages, gathers and sums of shards,
/// copies of offloaded activations) does so on one network (layer_waits).
UpdateTime update_time(const Setting& setting, const RankShare& share,
                       std::span<const LayerAttention* const> attention, const simulator::Cluster& cluster);

/// Seconds of the first layer in both passes without its products and elementwise kernels: attention, what of
/// it is computed again, and waits for all that travels in the layer.
double attention_seconds(const Setting& setting, const RankShare& share, const LayerAttention& attention,
                         const simulator::Cluster& cluster);

}  // namespace annulus::prediction
