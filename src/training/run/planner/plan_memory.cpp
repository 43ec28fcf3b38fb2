#include "training/run/planner/plan_memory.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/training/model/config.hpp>

#include "base/parse_number.hpp"
#include "training/run/config/attention_inputs.hpp"
#include "training/run/groups.hpp"
#include "training/run/planner/memory_planner.hpp"

namespace annulus::training {

namespace {

/// Ranks of a group whose memory is looked at: all of a few, else some, evenly spread, whose shards differ by
/// a row or so from the others'.
std::vector<int> looked_at(int ranks) {
  constexpr int most = 16;
  std::vector<int> list;
  for (int i = 0; i < std::min(ranks, most); ++i)
    list.push_back(static_cast<int>(std::int64_t{i} * ranks / std::min(ranks, most)));
  if (list.back() != ranks - 1) list.push_back(ranks - 1);
  return list;
}

}  // namespace

PlannedPolicy planned_memory(MemoryPlanner& planner, const PlannedMachine& machine, std::int64_t taken,
                             const Config::Memory& memory) {
  PlannedPolicy made{.memory = memory, .outline = outline(memory), .bytes = {}, .time = {}};
  for (const int rank : looked_at(planner.context())) {
    prediction::UpdateMemory bytes = planner.memory(memory, rank);
    const auto most = [&](const prediction::UpdateMemory& of) {
      return planner.on_gpu() ? of.device.total : of.host.total;
    };
    if (!made.bytes.moments.empty() && most(bytes) <= most(made.bytes)) continue;
    made.bytes = std::move(bytes);
    made.rank = rank;
  }
  if (machine.on_gpu && machine.gpu_memory > 0)
    made.missing_device = made.bytes.device.total + taken - machine.gpu_memory;
  if (machine.host_memory > 0) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    const std::int64_t of_rank = made.bytes.host.total, ranks = machine.topology.most_ranks_on_a_node();
    made.missing_host = (of_rank > most / ranks ? most : of_rank * ranks) - machine.host_memory;
  }
  return made;
}

MemoryPlanner planner_of(const Config& config, const PlannedMachine& machine) {
  require(config.model.vocabulary > 0,
          "model.vocabulary = 0 takes that of the data, which a plan does not read: set it (annulus-tokens "
          "info tells the data's)");
  AttentionInputs inputs = read_attention_inputs(config);
  inputs.cluster = machine.cluster;
  inputs.world = machine.topology;
  const int context = context_ranks(config.parallel, machine.topology.ranks());
  return MemoryPlanner(config, machine.topology,
                       resolve_attention(config, prediction::first_ranks(machine.topology, context), inputs),
                       machine.on_gpu);
}

Config::Memory open_memory(const Config& config) {
  Config::Memory open = config.memory;
  open.recompute = {std::string(recompute_auto)};
  if (config.chooses_recompute()) return open;
  open.chunk_rows = 0;
  open.offload_activations = 0;
  open.store_fraction = Config::Memory().store_fraction;
  open.layers_without_recompute = 0;
  return open;
}

namespace {

/// {category: bytes}
nlohmann::json bytes_json(const MemoryBytes& bytes) {
  nlohmann::json json = nlohmann::json::object();
  for (int i = 0; i < memory_category_count; ++i)
    json[std::string(name_of(static_cast<MemoryCategory>(i)))] = bytes[static_cast<std::size_t>(i)];
  return json;
}

/// SequencePlans::pairs of those that layers are expected to select.
double selected_pairs(const SequencePlans& plans) {
  const std::vector<int>& mask_of_layer = plans.attention().mask_of_layer;
  double sum = 0;
  for (const int mask : mask_of_layer)
    sum += plans.attention().densities[static_cast<std::size_t>(mask)] * double(plans.pairs(mask));
  return sum / double(mask_of_layer.size());
}

}  // namespace

MemoryPlan plan_memory(const Config& config, const PlannedMachine& machine) {
  MemoryPlanner planner = planner_of(config, machine);
  const SequencePlans& plans = planner.plans();
  const int ranks = machine.topology.ranks(), context = planner.context();

  MemoryPlan plan;
  plan.config = config;
  if (machine.on_gpu) plan.libraries = estimated_library_bytes(machine.topology);
  if (machine.on_gpu && config.chooses_recompute()) plan.spare = spare_gpu_bytes(config, machine.gpu_memory);
  std::deque<PlannedPolicy> all;  // those that were looked at
  const auto policy = [&](const Config::Memory& memory) -> const PlannedPolicy& {
    const auto found = std::ranges::find(all, memory, &PlannedPolicy::memory);
    if (found != all.end()) return *found;
    PlannedPolicy& next =
        all.emplace_back(planned_memory(planner, machine, plan.libraries + plan.spare, memory));
    next.time = planner.time(memory, machine.cluster);
    return next;
  };
  plan.schedule = plans.attention().schedule;
  plan.layout = plans.problem().layout.to_string();
  plan.step_tokens =
      double(ranks / context) * double(config.train.micro_batches) * double(config.data.sequence_length);
  plan.step_flops =
      model::dense_flops(config.model, std::llround(plan.step_tokens)) +
      model::attention_flops(config.model,
                             selected_pairs(plans) * double(config.train.passes()) * double(ranks / context));
  const MemoryChoices made = planner.choose(open_memory(config), machine.cluster, [&](const auto& tried) {
    std::vector<std::int64_t> missing;
    for (const Config::Memory& memory : tried) missing.push_back(policy(memory).missing());
    return missing;
  });
  for (const MemoryChoices::Choice& choice : made.all) plan.policies.push_back(policy(choice.memory));
  if (config.chooses_recompute()) {
    plan.configured = plan.policies[made.taken];
    plan.reason = made.reason();
  } else {
    plan.configured = policy(config.memory);
  }
  std::ranges::stable_sort(plan.policies, {},
                           [](const PlannedPolicy& policy) { return policy.time.total(); });
  return plan;
}

std::int64_t estimated_library_bytes(const Topology& topology) {
  constexpr std::int64_t mib = std::int64_t{1} << 20, of_two = 4864 * mib, of_a_rank = 512 * mib;
  const int connected = topology.most_ranks_on_a_node() - 1 + topology.nodes() - 1;
  return of_two + of_a_rank * std::max(0, connected - 1);
}

std::int64_t spare_gpu_bytes(const Config& config, std::int64_t total) {
  std::int64_t passing = 0;
  const model::ParameterMap map(config.model);
  for (const model::ParameterUnit& unit : map.units())
    if (config.parallel.zero > 0)
      passing = std::max(passing, static_cast<std::int64_t>(sizeof(float)) * unit.size());
  return std::min(passing + total / 100, total * 3 / 100);
}

nlohmann::json peaks_json(const MemoryBytes& peaks, std::int64_t total) {
  nlohmann::json json = bytes_json(peaks);
  json["total"] = total;
  return json;
}

nlohmann::json peaks_json(const prediction::UpdateMemory& memory) {
  nlohmann::json json = peaks_json(memory.host.categories, memory.host.total);
  if (memory.device.total > 0) json["device"] = peaks_json(memory.device.categories, memory.device.total);
  return json;
}

nlohmann::json moments_json(const std::vector<prediction::MomentMemory>& moments) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [moment, device, host] : moments)
    json.push_back({{"moment", moment}, {"device", bytes_json(device)}, {"host", bytes_json(host)}});
  return json;
}

std::int64_t parse_bytes(const std::string& text, const std::string& field) {
  constexpr std::array<std::pair<const char*, double>, 9> units{{{"", 1},
                                                                 {"B", 1},
                                                                 {"KiB", 1024},
                                                                 {"MB", 1e6},
                                                                 {"MiB", 1048576},
                                                                 {"GB", 1e9},
                                                                 {"GiB", 1073741824},
                                                                 {"TB", 1e12},
                                                                 {"TiB", 1099511627776}}};
  std::string packed = text;
  std::erase(packed, ' ');
  std::string_view rest = packed;
  const double number = take_number<double>(rest).value_or(-1);
  constexpr double most = 1e18;
  for (const auto& [name, factor] : units)
    if (rest == name && number > 0 && number * factor <= most) return std::llround(number * factor);
  fail("{} '{}': give bytes, at most 10^18, with MB, MiB, GB, GiB, TB or TiB behind them, as in 141GB", field,
       text);
}

}  // namespace annulus::training
