// How to add a schedule (docs/contributing.md): keys stay where they are, and queries go to all of them.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"
#include "attention/plan/builders/parts.hpp"
#include "attention/plan/needs/shard_pairs.hpp"

namespace annulus::plan {
namespace {

constexpr Tensor results[] = {Tensor::o, Tensor::lse};

/// "pass-q": every rank sends its queries to the ranks whose keys they attend to; these attend to their own
/// keys and send partial results (O, LSE) back, to be merged. Cheaper than sending keys where queries are
/// few.
///
///   step 0: queries leave; each rank computes its own block
///   step 1: each rank computes the blocks of the queries that came
///   step 2: partial results leave
///   step 3: they are merged
class PassQ {
 public:
  explicit PassQ(const Problem& problem) : shard_pairs_(problem) {
    const std::vector<bool> meets = shard_pairs_.hops();
    for (int hop = 1; hop < problem.ranks(); ++hop) {
      if (meets[static_cast<std::size_t>(hop)]) hops_.push_back(hop);
    }
    steps_ = !hops_.empty() ? 4 : meets[0] ? 1 : 0;
  }

  int steps() const { return steps_; }
  int period() const { return 0; }  // ranks are proved and simulated one by one

  Step step(int rank, int t) const {
    Step step;
    if (t == 0 && shard_pairs_.any(rank, rank))
      step.computes.push_back(compute(problem(), rank, rank, shard_pairs_.of(rank, rank)));
    // Slots 1 to `hops` hold what came from the rank so many hops on, and what is computed for it; the next
    // `hops` hold partial results that land here.
    const Slot hops = static_cast<Slot>(hops_.size());
    for (Slot i = 1; i <= hops; ++i) {
      const int hop = hops_[static_cast<std::size_t>(i - 1)];
      const int asking = shard_pairs_.turned(rank, hop), answering = shard_pairs_.turned(rank, -hop);
      const ActiveRows theirs = shard_pairs_.of(asking, rank), ours = shard_pairs_.of(rank, answering);
      if (t == 0 && !ours.empty())
        step.sends.push_back(message(Tensor::q, rank, ours.q, answering, local_slot, t));
      if (t == 0 && !theirs.empty())
        step.receives.push_back(message(Tensor::q, asking, theirs.q, asking, i, t));
      if (t == 1 && !theirs.empty()) {
        for (const Tensor tensor : results)
          step.clears.push_back({part(problem(), tensor, asking, theirs.q), i});
        step.computes.push_back(compute(problem(), asking, rank, theirs));
        step.computes.back().q_slot = step.computes.back().out_slot = i;
      }
      for (const Tensor tensor : results) {
        if (t == 2 && !theirs.empty()) step.sends.push_back(message(tensor, asking, theirs.q, asking, i, t));
        if (t == 2 && !ours.empty())
          step.receives.push_back(
              return_to_owner(message(tensor, rank, ours.q, answering, hops + i, t), OnReceive::merge));
      }
    }
    return step;
  }

 private:
  const Problem& problem() const { return shard_pairs_.problem(); }
  Transfer message(Tensor tensor, int owner, RowRange rows, int peer, Slot slot, int post) const {
    return transfer(problem(), part(problem(), tensor, owner, rows), Channel::activations, peer, slot, post);
  }

  ShardPairs shard_pairs_;
  std::vector<int> hops_;  // distances at which some queries meet keys of another rank
  int steps_ = 0;
};

}  // namespace

/// The backward is that of `burst`, in which queries travel, too.
Plan make_pass_q(const Problem& problem, Pass pass) {
  problem.check();
  if (pass == Pass::forward)
    return lazy_plan("pass-q", problem, pass, std::make_shared<const PassQ>(problem));
  Plan plan = make_burst(problem, pass);
  plan.schedule = "pass-q";
  return plan;
}

}  // namespace annulus::plan

namespace annulus::test {
namespace {

using plan::OnReceive;
using plan::Pass;
using plan::Problem;
using plan::Step;

TEST(ScheduleExample, IsProvedAndExact) {
  for (const char* mask : {"full", "causal", "documents:0,30,31"}) {
    for (const int ranks : {1, 2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << mask << " on " << ranks << " ranks");
      const auto sample = make_sample(mask, {.tokens = 61});
      const Problem problem = sample->problem(Topology::uniform(ranks, 2), Layout::parse("zigzag"));
      const plan::Plan forward = plan::make_pass_q(problem, Pass::forward);
      const plan::Plan backward = plan::make_pass_q(problem, Pass::backward);
      plan::validate(forward);
      plan::validate(backward);
      comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
        expect_correct(run(communicator, *sample, forward, backward), mask);
      });
    }
  }
}

// The validator finds what a builder forgets.
TEST(ScheduleExample, APlanWithoutItsMergeIsRefused) {
  const auto sample = make_sample("full", {.tokens = 61});
  plan::Plan plan =
      plan::make_pass_q(sample->problem(Topology::uniform(2, 2), Layout::parse("zigzag")), Pass::forward);
  plan.step = [right = plan.step](int rank, int step) {
    Step result = right(rank, step);
    for (plan::Transfer& receive : result.receives) receive.on_receive = OnReceive::store;
    return result;
  };
  EXPECT_FALSE(plan::violations(plan).empty());
}

}  // namespace
}  // namespace annulus::test
