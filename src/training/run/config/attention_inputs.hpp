#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sequence/mask.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// Makes plans of a schedule, by its name.
using MakePlan =
    std::function<plan::Plan(const std::string& schedule, const plan::Problem& problem, plan::Pass pass)>;

/// What the attention of a run is made from beside its configuration.
struct AttentionInputs {
  /// The distinct masks of the layers, a block list read; where the data give the documents, with one
  /// document.
  std::vector<Mask> masks;
  std::optional<simulator::Cluster> cluster;  ///< of the file attention.cluster, where that is given
  std::uint32_t cluster_checksum = 0;         ///< CRC-32 of this file
  /// Starts of a sequence's documents that choices and the first plans are made for, where the data give
  /// them.
  std::vector<std::int64_t> documents = {0};
  /// All ranks of a run that trains. With them `auto` counts what else travels in a layer.
  std::optional<Topology> world = std::nullopt;
  MakePlan make_plan;  ///< plan::make_plan, or what a test has in its place
};

/// Reads the files that attention.mask and attention.cluster name, each once. Throws Error naming key and
/// file.
AttentionInputs read_attention_inputs(const Config& config);

/// The masks of a model's layers: attention.mask, joined with what model.pattern says of each.
struct LayerMasks {
  std::vector<std::string> distinct;  ///< as attention.mask has them
  std::vector<int> of_layer;          ///< index of `distinct`, of each layer
};
LayerMasks layer_masks(const Config& config);

/// The distinct masks of a model's layers, for a sequence of so many tokens; where the data give the
/// documents, with one document. Throws Error naming the key.
std::vector<Mask> masks_of(const Config& config, std::int64_t tokens);

/// One of the terms of a mask, which '+' joins, is `documents` without start offsets: the data give them.
bool takes_documents_from_data(std::string_view mask);

}  // namespace annulus::training
