#include "training/run/planner/longest_sequence.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
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

Config with_memory(Config config, const Config::Memory& memory) {
  config.memory = memory;
  return config;
}

/// Policies at any length. What `auto` chooses depends on memory.*, whose policy a planner is made for.
class Lengths {
 public:
  Lengths(const Config& config, const PlannedMachine& machine, std::int64_t taken)
      : config_(config), machine_(machine), taken_(taken) {}

  /// Throws Error where no such sequence can be planned, whatever memory there is.
  MemoryPlanner& planner(std::int64_t tokens, const Config::Memory& made_for) {
    const Config config = with_length(config_, tokens);
    // Neither of these has a part in the time of a layer's attention.
    Config::Memory key = made_for;
    key.chunk_rows = config.memory.chunk_rows;
    key.offload_optimizer = config.memory.offload_optimizer;
    std::deque<std::pair<Config::Memory, MemoryPlanner>>& of_length = planners_[tokens];
    for (auto& [memory, planner] : of_length)
      if (memory == key) return planner;
    try {
      config.check();
      return of_length.emplace_back(key, planner_of(with_memory(config, key), machine_)).second;
    } catch (const Error& error) {
      fail("--longest with data.sequence_length = {}: {}", tokens, error.what());
    }
  }
  PlannedPolicy policy(const Config::Memory& memory, std::int64_t tokens, const Config::Memory& made_for) {
    return planned_memory(planner(tokens, made_for), machine_, taken_, memory);
  }
  /// Whether `auto` chooses the same for two policies.
  bool alike(std::int64_t tokens, const Config::Memory& a, const Config::Memory& b) {
    if (!planner(tokens, a).plans().attention().chosen) return true;
    const ResolvedAttention &of_a = planner(tokens, a).plans().attention(),
                            &of_b = planner(tokens, b).plans().attention();
    return of_a.schedule == of_b.schedule && of_a.problem.layout == of_b.problem.layout;
  }

 private:
  const Config& config_;
  const PlannedMachine& machine_;
  std::int64_t taken_;
  std::map<std::int64_t, std::deque<std::pair<Config::Memory, MemoryPlanner>>> planners_;
};

/// With plans that are made for the policy `made_for`. Nothing where their layout does not allow `memory`.
std::optional<LongestSequence> search(Lengths& lengths, const Config::Memory& memory,
                                      const Config::Memory& made_for, std::int64_t shortest) {
  using Limit = LongestSequence::Limit;
  constexpr std::int64_t most = Mask::max_tokens / longest_unit * longest_unit;
  const bool by_position = memory.recompute.front() == "sequence-selective";
  bool possible = true;
  LongestSequence longest{.policy = lengths.policy(memory, shortest, made_for)};
  std::int64_t over = most + longest_unit;  // the shortest that is known not to fit
  const auto fits = [&](std::int64_t tokens) {
    const std::int64_t longer = std::exchange(over, tokens);
    PlannedPolicy policy;
    try {
      possible = !by_position || lengths.planner(tokens, made_for).recomputes_by_position();
      if (!possible) return false;
      policy = lengths.policy(memory, tokens, made_for);
    } catch (const Error& error) {  // it has more pairs than are counted, for instance
      longest.limit = Limit::refusal;
      longest.refusal = error.what();
      return false;
    }
    if (!policy.fits()) {
      longest.limit = policy.missing_device > 0 ? Limit::device : Limit::host;
      return false;
    }
    over = longer;
    longest.tokens = tokens;
    longest.policy = std::move(policy);
    return true;
  };
  for (std::int64_t tokens = shortest; tokens <= most && fits(tokens);) tokens *= 2;
  while (possible && longest.tokens > 0 &&
         over - longest.tokens > std::max(longest_unit, longest.tokens / 64))
    fits((longest.tokens + over) / 2 / longest_unit * longest_unit);
  return possible ? std::optional(std::move(longest)) : std::nullopt;
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
  const Config::Memory& own = config.memory;
  for (const Config::Memory& memory : lengths.planner(rows * context, own).choices(open_memory(config))) {
    std::optional<LongestSequence> longest = search(lengths, memory, own, shortest);
    // Choosing takes time: only a policy for which `auto` chooses otherwise has choices of its own.
    if (!longest || !lengths.alike(std::max(longest->tokens, shortest), memory, own))
      longest = search(lengths, memory, memory, shortest);
    if (longest) made.policies.push_back(*std::move(longest));
  }
  return made;
}

prediction::UpdateTime time_of(const LongestSequence& longest, const Config& config,
                               const PlannedMachine& machine) {
  const Config::Memory& memory = longest.policy.memory;
  return planner_of(with_memory(with_length(config, longest.tokens), memory), machine)
      .time(memory, machine.cluster);
}

}  // namespace annulus::training
