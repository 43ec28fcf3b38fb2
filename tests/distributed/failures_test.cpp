// What goes wrong on one rank must end all of them, with a message that says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/comm/loopback.hpp>
#include <annulus/comm/null.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

#include "distributed/attention_case.hpp"
#include "support/error_text.hpp"
#include "support/pass_through.hpp"

namespace annulus::test {
namespace {

using distributed::Plans;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int ranks = 3;

plan::Problem problem_for(const comm::Communicator& communicator) {
  return make_sample("causal", {.tokens = 61})->problem(communicator.topology(), Layout::parse("zigzag"));
}

Plans plans_for(const plan::Problem& problem) {
  return {plan::make_burst(problem, plan::Pass::forward), plan::make_burst(problem, plan::Pass::backward)};
}

/// The message that every rank gets when it makes an Attention out of what `change` leaves of its plans.
template <class Change>
std::vector<std::string> messages(const Change& change) {
  std::vector<std::string> texts(ranks);
  comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
    Plans plans = plans_for(problem_for(communicator));
    change(communicator.rank(), plans);
    texts[static_cast<std::size_t>(communicator.rank())] = error_text([&] {
      distributed::Attention<HostExec, float>(HostExec(), communicator, plans.forward, plans.backward);
    });
  });
  return texts;
}

TEST(DistributedFailures, PlansThatFitAreNoError) {
  EXPECT_THAT(messages([](int, Plans&) {}), Each(std::string("no error")));
}

TEST(DistributedFailures, OneRankWithAnotherProblem) {
  EXPECT_THAT(messages([](int rank, Plans& plans) {
                if (rank != 2) return;
                plan::Problem other = plans.forward.problem;
                other.mask = Mask::parse("window:5,0", 61);
                plans = plans_for(other);
              }),
              Each(mentions("ranks disagree", "rank 2", "window:5,0")));
}

TEST(DistributedFailures, OneRankWithOtherDocuments) {
  EXPECT_THAT(messages([](int rank, Plans& plans) {
                plan::Problem other = plans.forward.problem;
                const std::vector<std::int64_t> starts{0, rank == 1 ? 30 : 31};
                other.mask = Mask::with_documents("documents", 61, starts);
                plans = plans_for(other);
              }),
              Each(HasSubstr("ranks disagree")));
}

TEST(DistributedFailures, OneRankWithAnotherPlanOfTheSameName) {
  EXPECT_THAT(messages([](int rank, Plans& plans) {
                if (rank != 1) return;
                plans.backward.step = [inner = plans.backward.step](int r, int number) {
                  plan::Step step = inner(r, number);
                  for (auto& send : step.sends) send.wire = DType::bf16;
                  return step;
                };
              }),
              Each(mentions("do not fit together", "backward", "messages from rank 1", "is sent as bf16")));
}

TEST(DistributedFailures, PlanForAnotherNumberOfRanks) {
  EXPECT_THAT(messages([](int, Plans& plans) {
                plan::Problem other = plans.forward.problem;
                other.topology = Topology::uniform(4, 4);
                plans = plans_for(other);
              }),
              Each(mentions("for 4 ranks", "communicator has 3")));
}

TEST(DistributedFailures, PassesThatDoNotBelongTogether) {
  EXPECT_THAT(messages([](int, Plans& plans) { std::swap(plans.forward, plans.backward); }),
              Each(HasSubstr("in this order")));
  EXPECT_THAT(messages([](int, Plans& plans) {
                plan::Problem other = plans.forward.problem;
                other.batch = 2;
                plans.backward = plan::make_burst(other, plan::Pass::backward);
              }),
              Each(HasSubstr("different problems")));
}

/// The same of the plans of a batch of two sequences.
template <class Change>
std::vector<std::string> batch_messages(const Change& change) {
  std::vector<std::string> texts(ranks);
  comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
    std::vector<Plans> plans(2, plans_for(problem_for(communicator)));
    change(communicator.rank(), plans);
    texts[static_cast<std::size_t>(communicator.rank())] =
        error_text([&] { distributed::Attention<HostExec, float>(HostExec(), communicator, plans); });
  });
  return texts;
}

TEST(DistributedFailures, PlansOfABatchThatDifferInMoreThanTheirMasks) {
  const auto with = [](const std::function<void(plan::Problem&)>& change) {
    return batch_messages([&](int, std::vector<Plans>& plans) {
      plan::Problem other = plans[1].forward.problem;
      change(other);
      plans[1] = plans_for(other);
    });
  };
  EXPECT_THAT(with([](plan::Problem& p) { p.mask = Mask::parse("documents:0,9", 61); }),
              Each(std::string("no error")));
  EXPECT_THAT(with([](plan::Problem& p) { p.batch = 2; }),
              Each(mentions("the batch of pair 1 is 2", "Problem::batch = 1")));
  EXPECT_THAT(with([](plan::Problem& p) { p.mask = Mask::parse("causal", 60); }),
              Each(HasSubstr("sequence 0 has 61 tokens and sequence 1 has 60")));
  EXPECT_THAT(with([](plan::Problem& p) { p.layout = Layout::parse("striped"); }),
              Each(HasSubstr(
                  "more than their masks: the layout is zigzag for sequence 0 and striped for sequence 1")));
}

TEST(DistributedFailures, RanksThatDisagreeAboutTheSequencesOfABatch) {
  EXPECT_THAT(batch_messages([](int rank, std::vector<Plans>& plans) {
                if (rank != 1) return;
                plan::Problem other = plans[1].forward.problem;
                other.mask = Mask::parse("causal+window:7,0", 61);
                plans[1] = plans_for(other);
              }),
              Each(mentions("ranks disagree about the mask of sequence 1 of the batch", "on rank 1")));
  EXPECT_THAT(batch_messages([](int rank, std::vector<Plans>& plans) {
                if (rank == 1) plans.pop_back();
              }),
              Each(HasSubstr("ranks disagree about the plan of the forward pass")));
  EXPECT_THAT(batch_messages([](int, std::vector<Plans>& plans) { plans.clear(); }),
              Each(HasSubstr("no plans")));
}

TEST(DistributedFailures, StorageOtherThanThePlans) {
  EXPECT_THAT(messages([](int, Plans& plans) {
                plan::Problem other = plans.forward.problem;
                other.activation = DType::bf16;
                plans = plans_for(other);
              }),
              Each(mentions("bf16", "f32", "Problem::activation")));
}

TEST(DistributedFailures, PlanThatReadsAnEmptySlotOnOneRank) {
  EXPECT_THAT(messages([](int, Plans& plans) {
                plans.forward.step = [inner = plans.forward.step](int r, int number) {
                  plan::Step step = inner(r, number);
                  if (r == 1 && number == 1) step.computes.at(0).kv_slot = 7;
                  return step;
                };
              }),
              Each(mentions("rank 1, step 1", "slot 7, which holds nothing")));
}

TEST(DistributedFailures, WrongShapes) {
  const auto sample = make_sample("causal", {.tokens = 61});
  const auto communicator = comm::make_null();
  const plan::Problem problem = sample->problem(communicator->topology(), Layout::parse("contiguous"));
  const HostExec exec;
  distributed::Attention<HostExec, float> attention(exec, *communicator,
                                                    plan::make_ring(problem, plan::Pass::forward),
                                                    plan::make_ring(problem, plan::Pass::backward));
  const auto array = [](int heads, int rows) { return Array4<float, HostExec>("array", 1, heads, rows, 16); };
  const Array3<float, HostExec> lse("lse", 1, 4, 61);
  const auto forward = [&](int kv_heads, int out_rows) {
    attention.forward(exec, {.q = array(4, 61),
                             .k = array(kv_heads, 61),
                             .v = array(2, 61),
                             .scale = 0.25f,
                             .out = array(4, out_rows),
                             .lse = lse});
  };
  EXPECT_THAT(error_text([&] { forward(4, 61); }), mentions("k is (1, 4, 61, 16)", "(1, 2, 61, 16)"));
  EXPECT_THAT(error_text([&] { forward(2, 60); }), HasSubstr("out is (1, 4, 60, 16)"));
  EXPECT_THAT(error_text([&] { forward(2, 61); }), HasSubstr("no error"));
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
