#include <annulus/plan/validate.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include <annulus/base/error.hpp>

#include "plan/validation.hpp"

namespace annulus::plan {
namespace validation {

Script::Script(const Plan& plan) : plan(plan) {
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    steps.push_back(plan.rank_steps(rank));
    shards.push_back(plan.problem.shard(rank));
  }
}

}  // namespace validation

std::vector<std::string> violations(const Plan& plan) {
  plan.problem.check();
  const validation::Script script(plan);
  validation::Findings findings;
  check_structure(script, findings);
  if (!findings.empty()) return findings.take();
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

void validate(const Plan& plan) {
  std::vector<std::string> found = violations(plan);
  if (found.empty()) return;
  constexpr std::size_t shown = 10;
  const std::size_t hidden = found.size() > shown ? found.size() - shown : 0;
  found.resize(std::min(found.size(), shown));
  fail("plan '{}' ({}) is invalid:\n  {}{}", plan.schedule, name_of(plan.pass), fmt::join(found, "\n  "),
       hidden > 0 ? fmt::format("\n  and {} more", hidden) : "");
}

}  // namespace annulus::plan
