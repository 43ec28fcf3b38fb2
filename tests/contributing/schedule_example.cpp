// How to add a schedule (docs/contributing.md): keys stay where they are, and queries go to all of them.
#include <gtest/gtest.h>

#include <annulus/comm/loopback.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/plan/validate.hpp>

#include "distributed/attention_case.hpp"

namespace annulus::test {
namespace {

using plan::local_slot;
using plan::OnReceive;
using plan::Pass;
using plan::Problem;
using plan::Slot;
using plan::Step;
using plan::Tensor;

/// "pass-q": every rank sends its queries to all others, which attend to their own keys and send partial
/// results (O, LSE) back, to be merged. Cheaper than sending keys where queries are few.
///
///   step 0: queries leave; each rank computes its own block
///   step 1: each rank computes the blocks of the queries that came
///   step 2: partial results leave
///   step 3: they are merged
plan::Plan make_pass_q(const Problem& problem) {
  plan::Plan plan;
  plan.schedule = "pass-q";
  plan.pass = Pass::forward;
  plan.problem = problem;
  plan.steps = 4;
  plan.step = [problem](int rank, int step) {
    const int others = problem.ranks() - 1;
    const auto compute = [&](int q_shard, Slot q_slot, Slot out_slot) {
      return plan::Compute{.q_shard = q_shard,
                           .kv_shard = rank,
                           .q_rows = {0, problem.shard(q_shard).count},
                           .kv_rows = {0, problem.shard(rank).count},
                           .heads = {0, problem.heads},
                           .q_slot = q_slot,
                           .out_slot = out_slot};
    };
    const auto transfer = [&](Tensor tensor, int owner, int peer, Slot slot) {
      return plan::Transfer{.slice = problem.whole(tensor, owner),
                            .wire = problem.wire(tensor),
                            .peer = peer,
                            .slot = slot,
                            .post = step,
                            .wait = step + 1};
    };
    Step result;
    if (step == 0) result.computes.push_back(compute(rank, local_slot, local_slot));
    // Slots 1 to `others` hold what came from the ranks before this one, and what is computed for them; the
    // next `others` hold partial results that land here.
    for (int i = 1; i <= others; ++i) {
      const int from = (rank - i + problem.ranks()) % problem.ranks(), to = (rank + i) % problem.ranks();
      if (step == 0) {
        result.sends.push_back(transfer(Tensor::q, rank, to, local_slot));
        result.receives.push_back(transfer(Tensor::q, from, from, i));
      } else if (step == 1) {
        for (const Tensor tensor : {Tensor::o, Tensor::lse})
          result.clears.push_back({problem.whole(tensor, from), i});
        result.computes.push_back(compute(from, i, i));
      } else if (step == 2) {
        for (const Tensor tensor : {Tensor::o, Tensor::lse}) {
          result.sends.push_back(transfer(tensor, from, from, i));
          plan::Transfer back = transfer(tensor, rank, to, others + i);
          back.on_receive = OnReceive::merge;
          back.target = local_slot;
          result.receives.push_back(back);
        }
      }
    }
    return result;
  };
  return plan;
}

TEST(ScheduleExample, IsProvedAndExact) {
  for (const char* mask : {"full", "causal", "documents:0,30,31"}) {
    for (const int ranks : {1, 2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << mask << " on " << ranks << " ranks");
      const auto sample = make_sample(mask, {.tokens = 61});
      const Problem problem = sample->problem(Topology::uniform(ranks, 2), Layout::parse("zigzag"));
      const plan::Plan forward = make_pass_q(problem);
      plan::validate(forward);
      comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
        expect_correct(run(communicator, *sample, forward, plan::make_plan("burst", problem, Pass::backward)),
                       mask);
      });
    }
  }
}

// The validator finds what a builder forgets.
TEST(ScheduleExample, APlanWithoutItsMergeIsRefused) {
  const auto sample = make_sample("full", {.tokens = 61});
  plan::Plan plan = make_pass_q(sample->problem(Topology::uniform(2, 2), Layout::parse("zigzag")));
  plan.step = [right = plan.step](int rank, int step) {
    Step result = right(rank, step);
    for (plan::Transfer& receive : result.receives) receive.on_receive = OnReceive::store;
    return result;
  };
  EXPECT_FALSE(plan::violations(plan).empty());
}

}  // namespace
}  // namespace annulus::test
