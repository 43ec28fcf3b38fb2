#include <algorithm>
#include <utility>

#include "attention/comm/point_to_point.hpp"
#include "attention/sparsity/selection_memory.hpp"
#include "prediction/step/setting.hpp"
#include "training/model/backward_memory.hpp"
#include "training/model/pass_parts.hpp"
#include "training/parameter_sharding/muon_shards.hpp"
#include "training/parameter_sharding/unit_schedule.hpp"

namespace annulus::prediction {

namespace {

void look(PeakBytes& peak, const MemoryBytes& now, const std::string& moment) {
  take_most(peak.categories, now);
  if (total_bytes(now) <= peak.total) return;
  peak.total = total_bytes(now);
  peak.at_once = now;
  peak.moment = moment;
}

/// What the attention of a model holds for sequences of so many tokens: exchange slots, documents and runs of
/// rows, and what layers select.
ArrayTable attention_arrays(const Setting& setting, const model::PassRows& rows, std::int64_t tokens,
                            std::int64_t exchange_bytes, std::int64_t document_bytes) {
  using enum MemoryCategory;
  ArrayTable table{{"annulus::executor::exchange", communication, exchange_bytes},
                   {"annulus::attention::documents", data, document_bytes}};
  // What a selection takes is known when it has been made: these are bounds, or guesses where it goes by
  // recall. Layers select one after the other; as if it stayed, for the peak is in one of them.
  if (setting.sparsity) {
    const sparsity::SelectionMemory selection =
        sparsity::selection_memory(*setting.sparsity, {.tokens = tokens,
                                                       .rows = rows.tokens,
                                                       .batch = static_cast<int>(rows.sequences),
                                                       .heads = setting.model.heads,
                                                       .kv_heads = setting.model.kv_heads,
                                                       .head_dim = setting.model.padded_head_dim(),
                                                       .element = size_of(setting.type),
                                                       .packed = setting.packed,
                                                       .keeps_columns = setting.keeps_columns});
    table.push_back({"annulus::sparsity::selections", activations, setting.sparse_layers * selection.kept});
    table.push_back({"annulus::sparsity::workspace", workspace, selection.workspace});
    table.push_back({"annulus::sparsity::columns", communication, selection.communication});
  }
  return table;
}

/// What stays from step to step, but for what layers keep and gradients.
ArrayTable staying(const Setting& setting, const RankShare& share) {
  using enum MemoryCategory;
  ArrayTable table =
      attention_arrays(setting, share.rows, setting.tokens, share.exchange_bytes, share.document_bytes);
  table.push_back({"annulus::attention::hopper::tables", workspace, share.table_bytes});
  // All ranks sum everything at once, through memory that the communicator keeps.
  if (setting.state.stage == 0 && !setting.state.native_sums)
    table.push_back(
        {"annulus::comm::workspace", communication,
         static_cast<std::int64_t>(comm::all_reduce_space(
             setting.topology, !setting.on_gpu,
             static_cast<std::size_t>(model::ParameterMap(setting.model).size()), sizeof(float)))});
  table.push_back({"annulus::comm::staging", communication, share.staging_bytes, 1, true});
  table.push_back({"annulus::training::sequences", data, share.data_bytes, 1, true});
  if (setting.sets > 1)
    table.push_back({"annulus::training::sequence_losses", data,
                     setting.passes * setting.sequences * static_cast<std::int64_t>(sizeof(double))});
  table.push_back({"annulus::training::snapshot", workspace, setting.snapshot_bytes, 1, true});
  return table;
}

/// Bytes of a rank, by who computes.
struct Held {
  MemoryBytes device{}, host{};
  void add(const ArrayTable& table) {
    for (const PlannedArray& array : table) at(array.pinned ? host : device, array.category) += array.bytes();
  }
};

/// Bytes of these arrays behind no call of a pass, behind one, and so on to `calls`.
std::vector<MemoryBytes> by_calls(const ArrayTable& table, std::size_t calls) {
  std::vector<MemoryBytes> bytes(calls + 2);  // first what changes there
  const auto slot = [&](int at) -> MemoryBytes& {
    return bytes[std::min(static_cast<std::size_t>(at), calls + 1)];
  };
  for (const PlannedArray& array : table) {
    at(slot(array.from), array.category) += array.bytes();
    at(slot(array.to), array.category) -= array.bytes();
  }
  for (std::size_t i = 1; i < bytes.size(); ++i) add(bytes[i], bytes[i - 1]);
  return bytes;
}

}  // namespace

Topology first_ranks(const Topology& all, int ranks) {
  std::vector<int> nodes;
  for (int node = 0, left = ranks; left > 0; ++node) {
    nodes.push_back(std::min(left, all.ranks_on(node)));
    left -= nodes.back();
  }
  return Topology(nodes);
}

UpdateMemory update_memory(const Setting& setting, const RankShare& share) {
  using enum MemoryCategory;
  const bool on_host = !setting.on_gpu;
  const model::ModelArrays model = model::model_arrays(setting.model, share.rows, setting.type,
                                                       setting.activations, setting.passes, on_host);
  const int sharing = setting.state.stage == 0 ? 1 : setting.state.ranks;
  const std::int64_t contributions =
      setting.state.native_sums ? std::int64_t{on_host} : std::int64_t{sharing - 1};
  const parameter_sharding::UnitArrays units =
      parameter_sharding::unit_arrays(setting.model, setting.state, setting.passes, contributions);
  const bool validates = setting.validation_tokens > 0;
  const model::PassRows validated{
      .sequences = 1, .tokens = share.validation.rows, .own_positions = share.rows.own_positions};
  const model::ModelArrays validation =
      validates ? model::model_arrays(setting.model, validated, setting.type,
                                      setting.activations.without_backward(), 1, on_host)
                : model::ModelArrays();
  const model::BackwardLayout backward =
      model::backward_layout(model.kept, units.held, bytes_of(validation.kept));

  Held stays;
  stays.add(parameter_sharding::state_arrays(model::ParameterMap(setting.model), setting.state));
  stays.add(model.others);
  stays.add({validation.products.bytes() > model.products.bytes() ? validation.products : model.products});
  MemoryBytes offloaded = stays.host;
  at(offloaded, data) = 0;  // token ids on their way
  stays.add(staying(setting, share));

  UpdateMemory memory{.offloaded = offloaded};
  const auto moment = [&](const std::string& name, const Held& passing, std::int64_t held) {
    auto [device, host] = stays;
    add(device, passing.device);
    add(host, passing.host);
    const std::int64_t kept = backward.activations(held);
    at(device, activations) += kept;
    at(device, gradients) += backward.bytes - kept;
    if (on_host) add(host, std::exchange(device, {}));
    look(memory.device, device, name);
    look(memory.host, host, name);
    return MomentMemory{name, device, host};
  };
  const std::vector<model::PassPart> parts = model::pass_parts(setting.model);
  std::size_t calls = units.held.size();  // behind the passes, one for each sum
  for (const model::PassPart& part : parts) calls += part.calls.size();
  const std::vector<MemoryBytes> passing = by_calls(units.passing, calls), held = by_calls(units.held, calls);
  std::size_t call = 0;
  MemoryBytes gathered{};  // weights of units while layers go forward
  for (const model::PassPart& part : parts) {
    MemoryBytes most{};
    std::int64_t held_then = 0;
    for (const std::size_t end = call + part.calls.size(); call < end; ++call) {
      MemoryBytes during = passing[call];
      take_most(during, passing[call + 1]);
      if (total_bytes(during) < total_bytes(most)) continue;
      most = during;
      held_then = total_bytes(held[call + 1]);
    }
    memory.moments.push_back(moment(model::text(part), {.device = most}, held_then));
    if (part.kind == model::PassPart::Kind::forward) take_most(gathered, most);
  }
  MemoryBytes sums{};
  while (++call < passing.size()) take_most(sums, passing[call]);
  memory.moments.push_back(moment("sums of gradients", {.device = sums}, bytes_of(units.held)));
  Held updating;
  updating.add(optimizer::muon_arrays(
      parameter_sharding::muon_sizes(model::ParameterMap(setting.model), setting.updates), setting.type));
  memory.moments.push_back(moment("optimizer", updating, bytes_of(units.held)));
  if (validates) {
    Held passing{.device = gathered};
    passing.add(validation.others);
    passing.add(attention_arrays(setting, validated, setting.validation_tokens,
                                 share.validation.exchange_bytes, share.validation.document_bytes));
    memory.validation = moment("validation", passing, 0);
  }
  return memory;
}

}  // namespace annulus::prediction
