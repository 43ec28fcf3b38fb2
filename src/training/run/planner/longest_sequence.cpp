#include "training/run/planner/longest_sequence.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "training/run/groups.hpp"
#include "training/run/planner/memory_planner.hpp"

namespace annulus::training {

namespace {

Config with_length(Config config, std::int64_t tokens) {
  config.data.sequence_length = tokens;
  return config;
}

/// Policies at any length.
class Lengths {
 public:
  Lengths(const Config& config, const PlannedMachine& machine, std::int64_t taken)
      : config_(config), machine_(machine), taken_(taken) {}

  MemoryPlanner& planner(std::int64_t tokens) {
    const auto found = planners_.find(tokens);
    if (found != planners_.end()) return found->second;
    const Config config = with_length(config_, tokens);
    try {
      config.check();
      return planners_.emplace(tokens, planner_of(config, machine_)).first->second;
    } catch (const Error& error) {
      fail("--longest with data.sequence_length = {}: {}", tokens, error.what());
    }
  }
  PlannedPolicy policy(const Config::Memory& memory, std::int64_t tokens) {
    return planned_memory(planner(tokens), machine_, taken_, memory);
  }
  /// Whether the layout that such a sequence has allows it.
  bool possible(const Config::Memory& memory, std::int64_t tokens) {
    return memory.recompute.front() != "sequence-selective" || planner(tokens).recomputes_by_position();
  }

 private:
  const Config& config_;
  const PlannedMachine& machine_;
  std::int64_t taken_;
  std::map<std::int64_t, MemoryPlanner> planners_;
};

LongestSequence search(Lengths& lengths, const Config::Memory& memory, std::int64_t shortest) {
  constexpr std::int64_t most = Mask::max_tokens / longest_unit * longest_unit;
  LongestSequence longest{.policy = lengths.policy(memory, shortest)};
  std::int64_t over = most + longest_unit;  // the shortest that is known not to fit
  const auto fits = [&](std::int64_t tokens) {
    PlannedPolicy policy = lengths.policy(memory, tokens);
    if (policy.fits() && lengths.possible(memory, tokens)) {
      longest.tokens = tokens;
      longest.policy = std::move(policy);
      return true;
    }
    over = tokens;
    longest.host_limits = policy.missing_device <= 0;
    return false;
  };
  for (std::int64_t tokens = shortest; tokens <= most && fits(tokens);) tokens *= 2;
  while (longest.tokens > 0 && over - longest.tokens > std::max(longest_unit, longest.tokens / 64))
    fits((longest.tokens + over) / 2 / longest_unit * longest_unit);
  return longest;
}

}  // namespace

LongestSequences longest_sequences(const Config& config, const PlannedMachine& machine) {
  require(!machine.on_gpu || machine.gpu_memory > 0,
          "--longest: nothing says how much memory a GPU has: give --gpu-memory, as in --gpu-memory 79.6GiB");
  require(machine.on_gpu || machine.host_memory > 0,
          "--longest: nothing says how much memory a node has: give --host-memory, as in --host-memory 1TiB");
  LongestSequences made;
  if (machine.on_gpu) made.libraries = estimated_library_bytes(machine.topology);
  if (machine.on_gpu && config.chooses_recompute()) made.spare = spare_gpu_bytes(config, machine.gpu_memory);
  Lengths lengths(config, machine, made.libraries + made.spare);
  // Of a sequence so long that chunks of rows make a difference.
  constexpr std::int64_t rows = 8192;
  const int context = context_ranks(config.parallel, machine.topology.ranks());
  const std::int64_t shortest = longest_unit * ceil_divide(std::int64_t{context}, longest_unit);
  for (const Config::Memory& memory : lengths.planner(rows * context).choices(open_memory(config)))
    made.policies.push_back(search(lengths, memory, shortest));
  return made;
}

prediction::UpdateTime time_of(const LongestSequence& longest, const Config& config,
                               const PlannedMachine& machine) {
  return planner_of(with_length(config, longest.tokens), machine)
      .time(longest.policy.memory, machine.cluster);
}

}  // namespace annulus::training
