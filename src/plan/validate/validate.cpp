#include <annulus/plan/validate.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include <annulus/base/error.hpp>

#include "plan/validate/validation.hpp"

namespace annulus::plan {
namespace validation {
namespace {

/// Bytes that the validator may take, and what it needs of them: measured, rounded up.
constexpr std::int64_t most_bytes = 1'700'000'000, bytes_of_step = 400, bytes_of_entry = 250;

std::int64_t bytes_of(const Step& step) {
  const auto entries = std::ssize(step.clears) + std::ssize(step.sends) + std::ssize(step.receives) +
                       std::ssize(step.computes);
  return bytes_of_step + bytes_of_entry * entries;
}

/// Refuses a plan that does not fit, before it is made: by the size of a few of its ranks.
void check_size(const Plan& plan, int walked) {
  std::int64_t most = 0;
  for (const int rank : {0, walked / 2, walked - 1}) {
    std::int64_t bytes = 0;
    for (int step = 0; step < plan.steps && bytes * walked <= most_bytes; ++step)
      bytes += bytes_of(plan.step(rank, step));
    most = std::max(most, bytes);
  }
  require(
      most * walked <= most_bytes,
      "plan '{}' ({}): {} steps on each of {} ranks are too many to validate in memory, and ranks do not "
      "repeat one another: prove the schedule on fewer ranks, or take one that does with this mask (rings on "
      "zigzag or striped layouts under causal masks)",
      plan.schedule, name_of(plan.pass), plan.steps, walked);
}

}  // namespace

Script::Script(const Plan& plan, Walk walk) : plan(plan), translation(plan.problem) {
  const int walked = walked_ranks(plan, walk);
  check_size(plan, walked);
  steps.reserve(static_cast<std::size_t>(walked));
  for (int rank = 0; rank < walked; ++rank) steps.push_back(plan.rank_steps(rank));
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) shards.push_back(plan.problem.shard(rank));
}

}  // namespace validation

std::vector<std::string> violations(const Plan& plan, Walk walk) {
  plan.problem.check();
  const validation::Script script(plan, walk);
  validation::Findings findings;
  check_structure(script, findings);
  if (!findings.empty()) return findings.take();
  check_period(script, findings);
  check_coverage(script, findings);
  // What follows needs partners for all messages, and tells little once contents have gone wrong.
  validation::Findings flow;
  const validation::Matching matching = match(script, flow);
  if (flow.empty()) check_data_flow(script, matching, flow);
  if (flow.empty()) check_progress(script, matching, validation::Issue::serial, {}, flow);
  std::vector<std::string> all = findings.take();
  std::ranges::move(flow.take(), std::back_inserter(all));
  return all;
}

void validate(const Plan& plan, Walk walk) {
  std::vector<std::string> found = violations(plan, walk);
  if (found.empty()) return;
  constexpr std::size_t shown = 10;
  const std::size_t hidden = found.size() > shown ? found.size() - shown : 0;
  found.resize(std::min(found.size(), shown));
  fail("plan '{}' ({}) is invalid:\n  {}{}", plan.schedule, name_of(plan.pass), fmt::join(found, "\n  "),
       hidden > 0 ? fmt::format("\n  and {} more", hidden) : "");
}

}  // namespace annulus::plan
