// What goes wrong on one rank must end all of them, with a message that says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>

#include "attention/executor/attention_case.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/pass_through.hpp"
#include "support/rank_messages.hpp"

namespace annulus::test {
namespace {

using executor::Plans;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int ranks = 3;

plan::Problem problem_for(const comm::Communicator& communicator) {
  return make_sample("causal", {.tokens = 61})->problem(communicator.topology(), Layout::parse("zigzag"));
}

/// The message that every rank gets when it makes an Attention out of what `change` leaves of its plans, one
/// for each sequence of the batch.
std::vector<std::string> messages(const std::function<void(int rank, std::vector<Plans>&)>& change,
                                  std::size_t sequences = 1) {
  return messages_of_ranks(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
    std::vector<Plans> plans(sequences, plans_of("burst", problem_for(communicator)));
    change(communicator.rank(), plans);
    executor::Attention<HostExec, float>(HostExec(), communicator, plans);
  });
}

/// What they get where the plans of the last sequence are for the problem that `change` leaves.
std::vector<std::string> messages_of(const std::function<void(int rank, plan::Problem&)>& change,
                                     std::size_t sequences = 1) {
  return messages(
      [&](int rank, std::vector<Plans>& plans) {
        plan::Problem other = plans.back().forward.problem;
        change(rank, other);
        plans.back() = plans_of("burst", other);
      },
      sequences);
}

/// Changes one step of a plan on one rank.
void change_step(plan::Plan& plan, int rank, int step, const std::function<void(plan::Step&)>& change) {
  plan.step = [inner = plan.step, rank, step, change](int r, int number) {
    plan::Step made = inner(r, number);
    if (r == rank && (step < 0 || number == step)) change(made);
    return made;
  };
}

TEST(DistributedFailures, PlansThatFitAreNoError) {
  EXPECT_THAT(messages([](int, std::vector<Plans>&) {}), Each(std::string("no error")));
}

TEST(DistributedFailures, RanksThatDisagree) {
  EXPECT_THAT(messages_of([](int rank, plan::Problem& p) {
                if (rank == 2) p.mask = Mask::parse("window:5,0", 61);
              }),
              Each(mentions("ranks disagree", "rank 2", "window:5,0")));
  EXPECT_THAT(messages_of([](int rank, plan::Problem& p) {
                const std::vector<std::int64_t> starts{0, rank == 1 ? 30 : 31};
                p.mask = Mask::with_documents("documents", 61, starts);
              }),
              Each(HasSubstr("ranks disagree")));
  EXPECT_THAT(messages_of(
                  [](int rank, plan::Problem& p) {
                    if (rank == 1) p.mask = Mask::parse("causal+window:7,0", 61);
                  },
                  2),
              Each(mentions("ranks disagree about the mask of sequence 1 of the batch", "on rank 1")));
  EXPECT_THAT(messages(
                  [](int rank, std::vector<Plans>& plans) {
                    if (rank == 1) plans.pop_back();
                  },
                  2),
              Each(HasSubstr("ranks disagree about the plan of the forward pass")));
}

TEST(DistributedFailures, OneRankWithAnotherPlanOfTheSameName) {
  EXPECT_THAT(messages([](int rank, std::vector<Plans>& plans) {
                if (rank != 1) return;
                for (int of = 0; of < ranks; ++of)
                  change_step(*plans[0].backward, of, -1, [](plan::Step& step) {
                    for (auto& send : step.sends) send.wire = DType::bf16;
                  });
              }),
              Each(mentions("do not fit together", "backward", "messages from rank 1", "is sent as bf16")));
}

TEST(DistributedFailures, PlanThatReadsAnEmptySlotOnOneRank) {
  EXPECT_THAT(messages([](int, std::vector<Plans>& plans) {
                change_step(plans[0].forward, 1, 1,
                            [](plan::Step& step) { step.computes.at(0).kv_slot = 7; });
              }),
              Each(mentions("rank 1, step 1", "slot 7, which holds nothing")));
}

TEST(DistributedFailures, ProblemsThatDoNotFit) {
  EXPECT_THAT(messages_of([](int, plan::Problem& p) { p.topology = Topology::uniform(4, 4); }),
              Each(mentions("for 4 ranks", "communicator has 3")));
  EXPECT_THAT(messages_of([](int, plan::Problem& p) { p.dtype = DType::bf16; }),
              Each(mentions("bf16", "f32", "Problem::dtype")));
  EXPECT_THAT(messages([](int, std::vector<Plans>& plans) { plans.clear(); }), Each(HasSubstr("no plans")));
}

TEST(DistributedFailures, PassesThatDoNotBelongTogether) {
  EXPECT_THAT(
      messages([](int, std::vector<Plans>& plans) { std::swap(plans[0].forward, *plans[0].backward); }),
      Each(HasSubstr("in this order")));
  EXPECT_THAT(messages([](int, std::vector<Plans>& plans) {
                plan::Problem other = plans[0].forward.problem;
                other.batch = 2;
                plans[0].backward = plan::make_burst(other, plan::Pass::backward);
              }),
              Each(HasSubstr("different problems")));
}

TEST(DistributedFailures, PlansOfABatchThatDifferInMoreThanTheirMasks) {
  const auto with = [](const std::function<void(plan::Problem&)>& change) {
    return messages_of([&](int, plan::Problem& p) { change(p); }, 2);
  };
  EXPECT_THAT(with([](plan::Problem& p) { p.mask = Mask::parse("documents:0,9", 61); }),
              Each(std::string("no error")));
  EXPECT_THAT(with([](plan::Problem& p) { p.batch = 2; }),
              Each(mentions("the batch of pair 1 is 2", "Problem::batch = 1")));
  EXPECT_THAT(with([](plan::Problem& p) { p.mask = Mask::parse("causal", 60); }),
              Each(mentions("sequence 0 has 61 tokens", "sequence 1 has 60")));
  EXPECT_THAT(with([](plan::Problem& p) { p.layout = Layout::parse("striped"); }),
              Each(mentions("zigzag for sequence 0", "striped for sequence 1")));
}

TEST(DistributedFailures, WrongShapes) {
  const auto sample = make_sample("causal", {.tokens = 61});
  const auto communicator = comm::make_null();
  const plan::Problem problem = sample->problem(communicator->topology(), Layout::parse("contiguous"));
  const HostExec exec;
  executor::Attention<HostExec, float> attention(exec, *communicator, {plans_of("ring", problem)});
  const RankRows<float, HostExec> rows(exec, *sample, problem.shard(0));
  const auto error = [&](int kv_heads, int out_rows) {
    auto arrays = rows.forward();
    arrays.k = Array4<float, HostExec>("k", 1, kv_heads, 61, 16);
    arrays.out = Array4<float, HostExec>("out", 1, 4, out_rows, 16);
    return error_text([&] { attention.forward(exec, arrays); });
  };
  EXPECT_THAT(error(4, 61), mentions("k is (1, 4, 61, 16)", "(1, 2, 61, 16)"));
  EXPECT_THAT(error(2, 60), HasSubstr("out is (1, 4, 60, 16)"));
  EXPECT_EQ(error(2, 61), "no error");
}

// --- During a pass ---------------------------------------------------------------------------------------

/// Throws behind `fail_at` calls of progress, with transfers in flight.
class FailsInProgress final : public PassThrough {
 public:
  FailsInProgress(comm::Communicator& inner, int fail_at) : PassThrough(inner), left_(fail_at) {}
  void progress() override {
    if (left_-- <= 0) fail("the kernel of rank {} failed", rank());
    PassThrough::progress();
  }

 private:
  int left_;
};

TEST(DistributedFailures, RankThatThrowsInAPassEndsAll) {
  const auto sample = make_sample("full", {.tokens = 61});
  for (const int when :
       {0, 1, 2, 3}) {  // in the first and a later step, in the forward and the backward pass
    EXPECT_THAT(error_text([&] {
                  comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
                    FailsInProgress failing(communicator, communicator.rank() == 1 ? when : 1000);
                    run(failing, *sample, "burst", Layout::parse("striped"));
                  });
                }),
                HasSubstr("the kernel of rank 1 failed"))
        << when;
  }
}

}  // namespace
}  // namespace annulus::test
