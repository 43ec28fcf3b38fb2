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

int workers_for(int representatives) {
  if (representatives < few_ranks_for_threads) return 1;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace

Scope::Scope(const Plan& plan, RankSubset subset)
    : plan(plan),
      premises(plan.problem, plan.pass, plan.steps, representative_ranks(plan, subset)),
      shift(plan.problem),
      workers(workers_for(premises.representatives)) {}

}  // namespace validation

std::vector<std::string> violations(const Plan& plan, RankSubset subset) {
  using namespace validation;
  plan.problem.check();
  const Scope scope(plan, subset);
  ProvedRanks proved = prove_ranks(scope);
  if (!proved.malformed.empty()) return proved.malformed.take();
  Diagnostics diagnostics;
  check_period(scope, proved.entries, diagnostics);
  check_coverage(scope, proved.computed, diagnostics);
  // What follows needs partners for all messages, and tells little once contents have gone wrong.
  const auto all_zero = [&](auto member) {
    return std::ranges::all_of(proved.unanswered,
                               [member](const MessageSum& sum) { return sum.*member == 0; });
  };
  Diagnostics flow;
  if (!all_zero(&MessageSum::contents)) {
    explain_messages(scope, proved.unanswered, flow);
  } else {
    flow = std::move(proved.flow);
    // Where both ends of every message are posted in the same step, by step and channel the first group that
    // is not complete can always be carried out by all its ranks.
    if (!all_zero(&MessageSum::posts)) {
      const ExpandedPlan expanded(scope);
      const Matching matching = match(expanded, flow);
      check_progress(expanded, matching, Issue::independent, flow);
      if (flow.empty()) check_progress(expanded, matching, Issue::serial, flow);
    }
  }
  diagnostics.add(flow.messages());
  return diagnostics.take();
}

void validate(const Plan& plan, RankSubset subset) {
  std::vector<std::string> found = violations(plan, subset);
  if (found.empty()) return;
  constexpr std::size_t shown = 10;
  const std::size_t hidden = found.size() > shown ? found.size() - shown : 0;
  found.resize(std::min(found.size(), shown));
  fail("plan '{}' ({}) is invalid:\n  {}{}", plan.schedule, plan.pass_text(), fmt::join(found, "\n  "),
       hidden > 0 ? fmt::format("\n  and {} more", hidden) : "");
}

}  // namespace annulus::plan
