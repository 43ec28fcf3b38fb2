#include <annulus/prediction/step/update_memory.hpp>

#include <algorithm>
#include <utility>

#include <annulus/training/model/unit_calls.hpp>

#include "attention/sparsity/selection_memory.hpp"
#include "training/parameter_sharding/memory_bytes.hpp"

namespace annulus::prediction {

namespace {

using parameter_sharding::add, parameter_sharding::at, parameter_sharding::take_most,
    parameter_sharding::total;

void look(PeakBytes& peak, const MemoryBytes& now, const std::string& moment) {
  take_most(peak.categories, now);
  if (total(now) <= peak.total) return;
  peak.total = total(now);
  peak.at_once = now;
  peak.moment = moment;
}

/// Of the ranks that share a copy of the state.
Topology sharing(const Setting& setting) {
  if (setting.state.stage == 0 || setting.state.ranks == setting.topology.ranks()) return setting.topology;
  std::vector<int> nodes;  // ranks of the first group on each node
  for (int rank = 0, left = setting.state.ranks; left > 0;) {
    const int here = std::min(left, setting.topology.ranks_on(setting.topology.node(rank)));
    nodes.push_back(here);
    rank += here;
    left -= here;
  }
  return Topology(nodes);
}

}  // namespace

UpdateMemory with_peaks(std::vector<MomentMemory> moments) {
  UpdateMemory memory;
  memory.moments = std::move(moments);
  for (const MomentMemory& at : memory.moments) {
    look(memory.device, at.device, at.moment);
    look(memory.host, at.host, at.moment);
  }
  return memory;
}

UpdateMemory update_memory(const Setting& setting, const RankShare& share) {
  using enum MemoryCategory;
  const model::ParameterMap map(setting.model);
  const bool on_host = !setting.on_gpu;
  const parameter_sharding::StateMemory state = parameter_sharding::state_memory(map, setting.state);
  const model::ActivationMemory layers =
      model::activation_memory(setting.model, share.rows, setting.type, setting.activations, on_host);
  const model::OtherMemory other = model::other_memory(setting.model, share.rows, setting.type,
                                                       setting.activations, setting.passes, on_host);
  const std::vector<model::UnitCall> calls = model::unit_calls(map);
  const parameter_sharding::PassingMemory passing = parameter_sharding::passing_memory(
      map, setting.state, {.topology = sharing(setting), .on_host = on_host}, calls, setting.passes);

  const std::vector<model::HeldGradient> held =
      parameter_sharding::held_gradients(map, setting.state, setting.passes);
  const model::BackwardLayout backward = model::backward_layout(layers.kept_by_layer, held);
  const std::int64_t all_held = model::elements_of(held) * static_cast<std::int64_t>(sizeof(float));

  // What stays from step to step. What layers keep and the gradients lie in one block.
  MemoryBytes device = state.device, host = state.host;
  add(device, passing.kept);
  at(device, gradients) += backward.bytes - all_held;
  at(device, activations) += layers.device() - layers.kept;
  at(device, communication) += share.exchange_bytes;
  at(device, workspace) += other.workspace;
  at(device, data) += other.token_ids;
  if (setting.sparsity) {  // of layers that come and go, as if it stayed: the peak is in them
    const sparsity::SelectionMemory selection =
        sparsity::selection_memory(*setting.sparsity, {.tokens = setting.tokens,
                                                       .rows = share.rows.tokens,
                                                       .batch = static_cast<int>(share.rows.sequences),
                                                       .heads = setting.model.heads,
                                                       .kv_heads = setting.model.kv_heads,
                                                       .head_dim = setting.model.head_dim,
                                                       .element = size_of(setting.type)});
    at(device, activations) += setting.sparse_layers * selection.kept;
    at(device, workspace) += selection.workspace;
    at(device, communication) += selection.communication;
  }
  at(host, activations) += layers.host;
  const MemoryBytes offloaded = host;
  at(host, data) += other.staging + share.data_bytes;
  at(host, workspace) += setting.snapshot_bytes;

  std::vector<MomentMemory> moments;
  const auto moment = [&](const std::string& name, const MemoryBytes& passes, std::int64_t held_bytes) {
    MemoryBytes now = device;
    add(now, passes);
    const std::int64_t kept = backward.activations(held_bytes);
    at(now, activations) += kept;
    at(now, gradients) -= kept;
    if (on_host) {
      add(now, host);
      moments.push_back({name, {}, now});
    } else {
      moments.push_back({name, now, host});
    }
  };
  for (std::size_t i = 0; i < calls.size();) {
    const model::PassPart part = calls[i].part;
    MemoryBytes most{};
    std::int64_t most_total = 0, held_bytes = 0;
    for (; i < calls.size() && calls[i].part == part; ++i) {
      if (total(passing.calls[i]) < most_total) continue;
      most_total = total(passing.calls[i]);
      most = passing.calls[i];
      held_bytes = passing.held[i];
    }
    moment(model::text(part), most, held_bytes);
  }
  moment("sums of gradients", passing.sums, all_held);
  moment("optimizer", {}, all_held);
  UpdateMemory memory = with_peaks(std::move(moments));
  memory.offloaded = offloaded;
  return memory;
}

}  // namespace annulus::prediction
