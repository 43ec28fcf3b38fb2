// The proof of the programs that run: it reads their steps back, and whatever is changed in one is found on
// all ranks before a message is sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/proof/handmade.hpp"
#include "attention/executor/proof/proof.hpp"
#include "attention/executor/proof/read_back.hpp"
#include "attention/plan/proof.hpp"
#include "support/rank_messages.hpp"
#include "support/usage.hpp"

namespace annulus::test {
namespace {

using executor::Program;
using executor::ProgramStep;
using plan::Pass;
using plan::Plan;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int proof_ranks = 4;

plan::Problem proof_problem(const char* layout, const char* mask, int batch) {
  return {.topology = Topology::uniform(proof_ranks, 2),
          .layout = Layout::parse(layout),
          .mask = Mask::parse(mask, 60),
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 16,
          .batch = batch,
          .dtype = DType::bf16};
}

std::vector<Plan> proof_plans(Pass pass, int batch = 2) {
  std::vector<Plan> plans;
  for (const char* schedule :
       {"ring", "burst", "topology-burst", "double-ring:2", "all-gather", "ulysses", "hybrid:2x2"}) {
    for (const char* mask : {"causal", "causal+documents:0,7,41"})
      plans.push_back(plan::make_plan(schedule, proof_problem("zigzag", mask, batch), pass));
  }
  plans.push_back(plan::make_plan("helper-worker", proof_problem("contiguous", "causal", batch), pass));
  // Ranks need several ranges of each other's keys.
  plans.push_back(plan::make_plan("all-gather", proof_problem("balanced", "documents:0,2,25", batch), pass));
  return plans;
}

constexpr executor::Cutting small_parts{.least_pairs = 1, .threads = 1};

/// As a program has it: transfers in the order in which it posts them, no slots that its pass does not use.
plan::Step as_run(plan::Step step, Pass pass) {
  std::ranges::stable_sort(step.sends, {}, &plan::Transfer::channel);
  std::ranges::stable_sort(step.receives, {}, &plan::Transfer::channel);
  if (pass == Pass::forward)
    for (plan::Compute& compute : step.computes) compute.kv_grad_slot = plan::local_slot;
  return step;
}

TEST(ProgramProof, ReadsBackTheStepsOfThePlan) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const Plan& plan : proof_plans(pass)) {
      for (int rank = 0; rank < proof_ranks; ++rank) {
        const Program program = executor::make_program(plan, rank, small_parts);
        const std::vector<plan::Step> steps = executor::read_back(program);
        for (int step = 0; step < plan.steps; ++step)
          EXPECT_TRUE(steps[static_cast<std::size_t>(step)] == as_run(plan.step(rank, step), pass))
              << plan.schedule << " rank " << rank << " step " << step;
      }
    }
  }
}

/// What every rank says to the programs of a plan when those of rank 1 have been changed.
std::vector<std::string> verdicts(const Plan& plan, const std::function<void(Program&)>& change) {
  return messages_of_ranks(plan.problem.topology, [&](comm::Communicator& communicator) {
    Program program = executor::make_program(plan, communicator.rank(), small_parts);
    if (communicator.rank() == 1) change(program);
    executor::prove_together(communicator, {&program});
  });
}

TEST(ProgramProof, ProgramsOfAllSchedulesAreProved) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const Plan& plan : proof_plans(pass))
      EXPECT_THAT(verdicts(plan, [](Program&) {}), Each(std::string("no error"))) << plan.schedule;
  }
}

// Rows and heads of one pair of shards are divided between the ranks: the sums do not tell, the steps do.
TEST(ProgramProof, ProgramsThatShareAPairOfShardsAreProved) {
  plan::Problem problem = proof_problem("contiguous", "causal", 2);
  problem.topology = Topology::uniform(2, 2);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const Plan plan = make_helper(problem, pass, {3, 17}, {2, 4});
    EXPECT_THAT(verdicts(plan, [](Program&) {}), Each(std::string("no error")));
    EXPECT_THAT(verdicts(plan,
                         [](Program& program) {
                           program.steps[1].computes.pop_back();
                           executor::mark_finishing(program);
                         }),
                Each(HasSubstr("(query, key, head) are never computed")));
  }
}

// --- One change each -------------------------------------------------------------------------------------

/// A change, and a program with it for every place where it can be made.
struct Mutation {
  std::string name;
  std::function<void(Program&, const std::function<void()>& check)> each;
};

/// Leaves out, one after the other, the entries of a list of each step.
template <class Entry>
Mutation without(std::string name, std::vector<Entry> ProgramStep::*list) {
  return {std::move(name), [list](Program& program, const std::function<void()>& check) {
            for (ProgramStep& step : program.steps) {
              const std::vector<Entry> whole = step.*list;
              for (std::size_t i = 0; i < whole.size(); ++i) {
                (step.*list).erase((step.*list).begin() + static_cast<std::ptrdiff_t>(i));
                check();
                step.*list = whole;
              }
            }
          }};
}

/// Changes, one after the other, the entries of a list.
template <class Entry, class Change>
void with_each(std::vector<Entry>& list, const Change& change, const std::function<void()>& check) {
  for (Entry& entry : list) {
    const Entry before = entry;
    change(entry);
    check();
    entry = before;
  }
}

template <class Entry, class Change>
Mutation changed(std::string name, std::vector<Entry> ProgramStep::*list, const Change& change) {
  return {std::move(name), [list, change](Program& program, const std::function<void()>& check) {
            for (ProgramStep& step : program.steps) with_each(step.*list, change, check);
          }};
}

template <class Change>
Mutation in_messages(std::string name, const Change& change) {
  return {std::move(name), [change](Program& program, const std::function<void()>& check) {
            for (executor::Exchange& exchange : program.exchanges) {
              with_each(exchange.sends, change, check);
              with_each(exchange.receives, change, check);
            }
          }};
}

std::vector<Mutation> mutations() {
  using executor::Action;
  using executor::Cleared;
  using executor::LocalCall;
  using executor::ProgramMessage;
  const auto in_calls = [](std::string name, const auto& change) {
    return changed(std::move(name), &ProgramStep::computes, change);
  };
  return {
      without("forgets a wait", &ProgramStep::waits),
      without("forgets a post", &ProgramStep::posts),
      without("forgets an action", &ProgramStep::actions),
      without("forgets to clear", &ProgramStep::clears),
      without("forgets a compute", &ProgramStep::computes),
      {"computes twice",
       [](Program& program, const auto& check) {
         for (ProgramStep& step : program.steps) {
           const auto calls = step.computes;
           for (const LocalCall& call : calls) {
             step.computes.push_back(call);
             check();
             step.computes = calls;
           }
         }
       }},
      {"waits before it posts",
       [](Program& program, const auto& check) {
         for (ProgramStep& step : program.steps) {
           const auto waits = step.waits;
           step.waits.insert(step.waits.end(), step.posts.begin(), step.posts.end());
           if (!step.posts.empty()) check();
           step.waits = waits;
         }
       }},
      changed("adds into another slot", &ProgramStep::actions, [](Action& a) { a.to.slot += 1; }),
      changed("adds another row", &ProgramStep::actions, [](Action& a) { a.from.offset += a.from.width; }),
      changed("clears what it does not name", &ProgramStep::clears,
              [](Cleared& c) { c.slice.owner = (c.slice.owner + 1) % proof_ranks; }),
      in_messages("sends to another rank", [](ProgramMessage& m) { m.peer = (m.peer + 1) % proof_ranks; }),
      in_messages("takes another place", [](ProgramMessage& m) { m.block.offset += m.block.width; }),
      in_messages("takes fewer rows", [](ProgramMessage& m) { m.block.rows -= 1; }),
      in_messages("takes another slot", [](ProgramMessage& m) { m.block.slot += 1; }),
      in_messages("takes another type", [](ProgramMessage& m) { m.wire = DType::f16; }),
      in_messages("takes fewer bytes", [](ProgramMessage& m) { m.bytes -= 2; }),
      in_messages("names another owner",
                  [](ProgramMessage& m) { m.slice.owner = (m.slice.owner + 1) % proof_ranks; }),
      in_messages("names other rows than those at its address",
                  [](ProgramMessage& m) {
                    m.slice.rows = {m.slice.rows.begin + 1, m.slice.rows.end + 1};
                  }),
      in_calls("other queries", [](LocalCall& c) { c.q.offset += c.q.width; }),
      in_calls("queries of another slot", [](LocalCall& c) { c.q.slot += 1; }),
      in_calls("keys of another slot", [](LocalCall& c) { c.k.slot += 1; }),
      in_calls("values of other heads", [](LocalCall& c) { c.v.offset += c.v.head_stride; }),
      in_calls("fewer keys", [](LocalCall& c) { c.k.rows -= 1; }),
      in_calls("other positions of queries", [](LocalCall& c) { c.q_positions.first += 1; }),
      in_calls("other positions of keys", [](LocalCall& c) { c.kv_positions.first += 1; }),
      in_calls("another result", [](LocalCall& c) { (c.o.elements() > 0 ? c.o : c.dq).slot += 1; }),
      in_calls("finishes or does not, the other way round", [](LocalCall& c) { c.finishes = !c.finishes; }),
      in_calls("lse of other rows", [](LocalCall& c) { c.lse.offset += 1; }),
  };
}

TEST(ProgramProof, FindsWhateverIsChangedInAProgram) {
  for (const Mutation& mutation : mutations()) {
    int changed = 0;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const Plan& plan : proof_plans(pass, 1)) {
        Program program = executor::make_program(plan, 1, small_parts);
        int places = 0;
        mutation.each(program, [&] {
          // Some are enough where there are many.
          if (places++ % 5 != 0) return;
          ++changed;
          EXPECT_THAT(verdicts(plan, [&](Program& other) { other = program; }),
                      Each(Not(std::string("no error"))))
              << plan.schedule << " " << name_of(pass) << ": " << mutation.name << ", place " << places - 1;
        });
      }
    }
    EXPECT_GT(changed, 5) << mutation.name;
  }
}

TEST(ProgramProof, SaysWhatIsWrongAndWhere) {
  const Plan plan = plan::make_ring(proof_problem("zigzag", "causal", 1), Pass::backward);
  EXPECT_THAT(
      verdicts(plan, [](Program& program) { program.steps[2].computes.front().q_positions.base += 1; }),
      Each(mentions("ring", "backward", "rank 1, step 2", "by other positions than theirs",
                    "(found on rank 1)")));
  EXPECT_THAT(verdicts(plan, [](Program& program) { program.steps[2].computes.clear(); }),
              Each(mentions("do not fit together", "q[1] x kv[3] is never computed")));
  EXPECT_THAT(verdicts(plan, [](Program& program) { program.capacity.slots[1][2] -= 1; }),
              Each(HasSubstr("which is too small")));
}

// --- In an Attention -------------------------------------------------------------------------------------

/// What every rank says when, after a good pair of plans, it takes one of which rank 2's steps are changed:
/// what a run meets at the sequence whose plans are wrong.
std::vector<std::string> second_plans(const std::function<void(plan::Step&)>& change) {
  return messages_of_ranks(Topology::uniform(proof_ranks, 2), [&](comm::Communicator& communicator) {
    const auto make = [](const char* mask, Pass pass) {
      plan::Problem problem = proof_problem("striped", mask, 1);
      problem.dtype = DType::f32;
      return plan::make_burst(problem, pass);
    };
    executor::Attention<HostExec, float> attention(HostExec(), communicator, make("causal", Pass::forward),
                                                   make("causal", Pass::backward));
    constexpr const char* documents = "causal+documents:0,11,33";
    Plan backward = make(documents, Pass::backward);
    backward.step = [inner = backward.step, change](int rank, int number) {
      plan::Step step = inner(rank, number);
      if (rank == 2) change(step);
      return step;
    };
    attention.set_plans(HostExec(), make(documents, Pass::forward), backward);
  });
}

TEST(ProgramProof, AttentionTakesNoPlansThatAreWrong) {
  EXPECT_THAT(second_plans([](plan::Step&) {}), Each(std::string("no error")));
  EXPECT_THAT(second_plans([](plan::Step& step) { step.computes.clear(); }),
              Each(HasSubstr("is never computed")));
  EXPECT_THAT(second_plans([](plan::Step& step) {
                std::erase_if(step.sends, [](const auto& t) { return t.slice.tensor == plan::Tensor::dq; });
              }),
              Each(mentions("burst", "backward", "is lost", "rank 2")));
}

// --- What it costs ---------------------------------------------------------------------------------------

/// 64 ranks on 8 nodes, 1,048,576 tokens in documents of 250 to 4,100 tokens.
plan::Problem long_problem(const char* layout) {
  constexpr std::int64_t tokens = 1 << 20;
  std::vector<std::int64_t> starts;
  for (std::int64_t start = 0, i = 1; start < tokens; start += 250 + i * 2657 % 3850, ++i)
    starts.push_back(start);
  return {.topology = Topology::uniform(64, 8),
          .layout = Layout::parse(layout),
          .mask = Mask::with_documents("causal+documents", tokens, starts),
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .dtype = DType::bf16};
}

// A step of a model of 7 billion parameters takes 1.7 s there (docs/schedules.md): a hundredth of it is 17
// ms. Twice that is allowed here: cores of a shared machine are at times half as fast.
TEST(ProgramProof, TakesAboutAHundredthOfAStepOfAMillionTokens) {
  if (sanitized) GTEST_SKIP() << "sanitized programs are slow";
  constexpr int repetitions = 5;
  for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:1024"}) {
    for (const char* schedule : {"ring", "burst", "topology-burst", "all-gather", "hybrid:8x8"}) {
      double seconds = 0;
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const Plan plan = plan::make_plan(schedule, plan::arranged_for(schedule, long_problem(layout)), pass);
        const Program program = executor::make_program(plan, 21, {.least_pairs = 1 << 22, .threads = 8});
        const double start = cpu_seconds();
        for (int i = 0; i < repetitions; ++i) {
          const plan::Premises premises(plan.problem, pass, plan.steps, 64);
          plan::RankProof proof(premises, 21);
          for (const plan::Step& step : executor::read_back(program)) proof.add(step);
          const plan::RankFindings found = proof.finish();
          EXPECT_TRUE(found.malformed.empty() && found.violations.empty());
          EXPECT_NE(plan::expected_weight(premises, 21), 0u);
        }
        seconds += (cpu_seconds() - start) / repetitions;
      }
      EXPECT_LT(seconds, 2 * 0.017) << schedule << " on " << layout;
    }
  }
}

}  // namespace
}  // namespace annulus::test
