#include "memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/training/model/config.hpp>

#include "base/units.hpp"
#include "common/text.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"
#include "training/run/planner/longest_sequence.hpp"

namespace annulus::app {

using training::Config;
using training::LongestSequence;
using training::LongestSequences;
using training::PlannedMachine;

namespace {

/// Where activations and the optimizer lie: a column.
using Offload = std::pair<bool, double>;  // optimizer, share of the layers

Offload offload_of(const Config::Memory& memory) {
  return {memory.offload_optimizer, memory.offload_activations};
}

/// What is computed again: a row.
std::string recompute_of(Config::Memory memory) {
  memory.offload_activations = 0;
  memory.offload_optimizer = false;
  memory.chunk_rows = 0;
  return training::outline(memory);
}

std::string column_text(const Offload& offload) {
  const auto& [optimizer, layers] = offload;
  const std::string of_layers = layers > 0 ? fmt::format("{:g} % of layers", 100 * layers) : "";
  if (!optimizer) return layers > 0 ? of_layers : "nothing";
  return layers > 0 ? "optimizer, " + of_layers : "optimizer";
}

/// "1280k", as data.sequence_length takes it.
std::string tokens_text(const LongestSequence& longest) {
  if (longest.tokens == 0) return "none";
  return fmt::format("{}k{}", longest.tokens / training::longest_unit,
                     longest.host_limits()  ? "*"
                     : longest.is_refused() ? "+"
                                            : "");
}

template <class T>
void add_new(std::vector<T>& list, const T& value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

/// The longest of those that `of` picks, the first of equal ones; null: none.
template <class Picks>
const LongestSequence* longest_of(const LongestSequences& all, const Picks& of) {
  const LongestSequence* longest = nullptr;
  for (const LongestSequence& each : all.policies)
    if (of(each.policy.memory) && (longest == nullptr || each.tokens > longest->tokens)) longest = &each;
  return longest;
}

std::string lengths_table(const LongestSequences& all, const std::vector<std::string>& recomputes) {
  std::vector<Offload> offloads;
  for (const LongestSequence& each : all.policies) add_new(offloads, offload_of(each.policy.memory));
  std::vector<std::vector<std::string>> rows{{"offloaded to the host:"}};
  for (const Offload& offload : offloads) rows.front().push_back(column_text(offload));
  for (const std::string& recompute : recomputes) {
    rows.push_back({recompute});
    for (const Offload& offload : offloads) {
      const LongestSequence* const longest = longest_of(all, [&](const Config::Memory& memory) {
        return recompute_of(memory) == recompute && offload_of(memory) == offload;
      });
      rows.back().push_back(longest == nullptr ? "–" : tokens_text(*longest));
    }
  }
  return table_text(rows);
}

/// What an optimizer step takes with the longest sequence of a policy.
struct Best {
  const LongestSequence* longest;
  double seconds;
};

std::string best_table(const std::vector<Best>& all, const PlannedMachine& machine) {
  std::vector<std::vector<std::string>> rows{
      {"the longest of each", "tokens", machine.on_gpu ? "GPU" : "memory", "host, a rank", "a step"}};
  for (const auto& [longest, seconds] : all) {
    const prediction::UpdateMemory& bytes = longest->policy.bytes;
    rows.push_back({longest->policy.outline, tokens_text(*longest),
                    binary_text(machine.on_gpu ? bytes.device.total : bytes.host.total),
                    machine.on_gpu ? binary_text(bytes.host.total) : "–", duration_text(seconds)});
  }
  return table_text(rows);
}

nlohmann::json to_json(const LongestSequences& all, const std::vector<Best>& best, const Config& config,
                       const PlannedMachine& machine) {
  nlohmann::json json = plan_json(machine, all.libraries, all.spare);
  json["config"] = config.to_toml();
  json["longest"] = nlohmann::json::array();
  for (const LongestSequence& each : all.policies) {
    nlohmann::json one = policy_json(each.policy, machine.on_gpu);
    for (const char* timed : {"seconds", "predicted_seconds"}) one.erase(timed);
    one["tokens"] = each.tokens;
    one["limit"] = each.is_refused() ? "refused" : machine.on_gpu && !each.host_limits() ? "gpu" : "host";
    if (each.is_refused()) one["refusal"] = each.refusal;
    const auto timed = std::ranges::find(best, &each, &Best::longest);
    if (timed != best.end()) one["seconds"] = timed->seconds;
    json["longest"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

int plan_longest(const Config& config, const PlannedMachine& machine, const MemoryPlanOptions& options) {
  const LongestSequences all = training::longest_sequences(config, machine);
  std::vector<std::string> recomputes;
  for (const LongestSequence& each : all.policies) add_new(recomputes, recompute_of(each.policy.memory));
  std::vector<Best> best;
  for (const std::string& recompute : recomputes) {
    const LongestSequence* const longest =
        longest_of(all, [&](const Config::Memory& memory) { return recompute_of(memory) == recompute; });
    if (longest->tokens > 0) best.push_back({longest, training::time_of(*longest, config, machine).total()});
  }
  std::ranges::stable_sort(best, std::greater(), [](const Best& of) { return of.longest->tokens; });
  const auto memory_text = [](std::int64_t bytes) { return bytes > 0 ? binary_text(bytes) : "any number"; };
  fmt::print("predicted, not measured: {:.2f} M parameters on {}; {}{} of a node; parallel.zero = {}\n",
             double(model::ParameterMap(config.model).size()) / 1e6, machine.topology.to_string(),
             machine.on_gpu ? memory_text(machine.gpu_memory) + " of a GPU, " : "",
             memory_text(machine.host_memory), config.parallel.zero);
  fmt::print("{}{}", taken_text(machine, all.libraries, all.spare), rates_line(config, machine, options));
  const auto refused = std::ranges::find_if(all.policies, &LongestSequence::is_refused);
  fmt::print("\ntokens of the longest sequence that fits, found to within a 64th (1k = 1024){}{}:\n{}\n",
             std::ranges::any_of(all.policies, &LongestSequence::host_limits) && machine.on_gpu
                 ? "; *: the host's memory is the limit"
                 : "",
             refused == all.policies.end() ? "" : "; +: longer ones are refused",
             lengths_table(all, recomputes));
  if (refused != all.policies.end()) fmt::print("refused: {}\n\n", refused->refusal);
  if (best.empty())
    fmt::print("nothing fits: take more GPUs, or GPUs with more memory\n");
  else
    fmt::print("{}", best_table(best, machine));
  if (!options.json.empty())
    io::write_text_atomically(options.json, io::json_text(to_json(all, best, config, machine)) + "\n");
  std::fflush(stdout);
  return best.empty() ? 3 : 0;
}

}  // namespace annulus::app
