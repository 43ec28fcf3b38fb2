#include <annulus/attention/plan/plan.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include <annulus/base/error.hpp>

#include "attention/plan/validate/partition.hpp"
#include "attention/plan/validate/validation.hpp"

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

ProofScope::ProofScope(const Plan& plan, RankSubset subset)
    : plan(plan),
      premises(plan.problem, plan.pass, plan.steps, representative_ranks(plan, subset)),
      shift(plan.problem),
      workers(workers_for(premises.representatives)) {}

}  // namespace validation

std::vector<std::string> violations(const Plan& plan, RankSubset subset) {
  using namespace validation;
  plan.problem.check();
  if (std::vector<std::string> wrong = partition_violations(plan.problem); !wrong.empty()) return wrong;
  const ProofScope scope(plan, subset);
  ProvedRanks proved = prove_ranks(scope);
  if (!proved.malformed.empty()) return proved.malformed.take();
  Diagnostics diagnostics;
  check_period(scope, proved.entries, diagnostics);
  check_coverage(scope, proved.computed, diagnostics);
  // What follows needs partners for all messages, and tells little once contents have gone wrong.
  Diagnostics flow;
  std::vector<bool> senders(proved.unanswered.size());
  constexpr int most_senders = 8;  // of so many at a time the messages fit into memory
  int wrong = 0;
  for (std::size_t rank = 0; rank < senders.size() && wrong < most_senders; ++rank) {
    senders[rank] = proved.unanswered[rank].contents != 0;
    wrong += senders[rank] ? 1 : 0;
  }
  if (wrong > 0) {
    match(scope, senders, flow);
  } else {
    flow = std::move(proved.flow);
    // Where both ends of every message are posted in the same step, by step and channel the first group that
    // is not complete can always be carried out by all its ranks.
    if (std::ranges::any_of(proved.unanswered, [](const MessageSum& sum) { return sum.posts != 0; })) {
      senders.assign(senders.size(), true);
      check_progress(scope, match(scope, senders, flow), flow);
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
