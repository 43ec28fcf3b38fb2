#include <annulus/plan/validate.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <thread>

#include <annulus/base/error.hpp>

#include "plan/validate/validation.hpp"

namespace annulus::plan {
namespace validation {
namespace {

/// Fewer ranks are not worth a second thread.
constexpr int few_ranks_for_threads = 128;

int workers_for(int walked) {
  if (walked < few_ranks_for_threads) return 1;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace

Scope::Scope(const Plan& plan, Walk walk)
    : plan(plan),
      premises(plan.problem, plan.pass, plan.steps, walked_ranks(plan, walk)),
      translation(plan.problem),
      workers(workers_for(premises.walked)) {}

}  // namespace validation

std::vector<std::string> violations(const Plan& plan, Walk walk) {
  using namespace validation;
  plan.problem.check();
  const Scope scope(plan, walk);
  Walked walked = walk_ranks(scope);
  if (!walked.malformed.empty()) return walked.malformed.take();
  Findings findings;
  check_period(scope, walked.entries, findings);
  check_coverage(scope, walked.computed, findings);
  // What follows needs partners for all messages, and tells little once contents have gone wrong.
  const auto all_zero = [&](auto member) {
    return std::ranges::all_of(walked.unanswered,
                               [member](const MessageSum& sum) { return sum.*member == 0; });
  };
  Findings flow;
  if (!all_zero(&MessageSum::contents)) {
    explain_messages(scope, walked.unanswered, flow);
  } else {
    flow = std::move(walked.flow);
    // Where both ends of every message are posted in the same step, by step and channel the first group that
    // is not complete can always be carried out by all its ranks.
    if (!all_zero(&MessageSum::posts)) {
      const Script script(scope);
      const Matching matching = match(script, flow);
      check_progress(script, matching, Issue::independent, flow);
      if (flow.empty()) check_progress(script, matching, Issue::serial, flow);
    }
  }
  findings.add(flow.messages());
  return findings.take();
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
