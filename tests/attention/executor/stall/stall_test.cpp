// What is told of a rank that is stuck in a pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>

#include "support/attention/rank_rows.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// Who is stuck, and in which of its computes, counted from 1; 0: before the pass.
struct Stuck {
  int rank = 0, compute = 0;
};

constexpr int ranks = 4;

/// How far the ranks have come.
struct Progress {
  std::array<std::atomic<int>, ranks> computes{};
  std::array<std::atomic<bool>, ranks> done{};
  std::atomic<bool> given_up = false;
};

/// The rank that gives up, after 500 ms; the others would wait a minute. Its wait starts when the others are
/// where they are to be seen, however slow the machine is: it stays in a compute until then.
struct Witness {
  int rank = 0, compute = 0;
  std::function<bool(const Progress&)> ready;
};

/// Forward over 96 tokens, full mask, two heads. One rank is stuck until the witness has given up.
void attend(comm::Communicator& communicator, const std::string& schedule, Stuck stuck,
            const Witness& witness, Progress& progress) {
  const auto of = AttentionProblem::random({96, 16, 1, 2, 2}, "full");
  const plan::Problem problem = planning_problem(of, communicator.topology(), Layout());
  const int rank = communicator.rank();
  auto& computes = progress.computes[static_cast<std::size_t>(rank)];
  const auto stay_until = [](const auto& over) {
    while (!over()) std::this_thread::sleep_for(1ms);
  };
  const auto given_up = [&] { return progress.given_up.load(); };
  executor::Settings settings;
  settings.stall_timeout = rank == witness.rank ? 500ms : 60s;
  settings.synthetic_kernel = [&](const executor::LocalWork&) {
    const int compute = ++computes;
    if (rank == stuck.rank && compute == stuck.compute) stay_until(given_up);
    if (rank == witness.rank && compute == witness.compute)
      stay_until([&] { return witness.ready(progress) || given_up(); });
  };
  const HostExec exec;
  executor::Attention<HostExec, float> attention(exec, communicator, {plans_of(schedule, problem)}, settings);
  const RankRows<float, HostExec> rows(exec, of, problem.shard(rank));
  const struct SayWhenGivenUp {
    std::atomic<bool>& gone;
    ~SayWhenGivenUp() {
      if (std::uncaught_exceptions() > 0) gone = true;
    }
  } say{progress.given_up};
  if (rank == stuck.rank && stuck.compute == 0) stay_until(given_up);
  attention.forward(exec, rows.forward());
  progress.done[static_cast<std::size_t>(rank)] = true;
}

/// What the witness says.
std::string told(const std::string& schedule, Stuck stuck, const Witness& witness) {
  Progress progress;
  return error_text([&] {
    comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
      attend(communicator, schedule, stuck, witness, progress);
    });
  });
}

TEST(Stall, NamesTheStepOfEveryRankAndTheLastOneOfThePeer) {
  const std::string text = told("ring", {.rank = 1, .compute = 2},
                                {2, 3, [](const Progress& p) { return p.computes[0] >= 3 && p.done[3]; }});
  // Rank 1 has sent in steps 0 and 1; its neighbour waits for what it would send in step 2.
  EXPECT_THAT(text, HasSubstr("has waited 500 ms"));
  EXPECT_THAT(text,
              ContainsRegex("; rank 1: ring forward, in plan step 1 of 0 to 3, computes since [0-9.]+ s"));
  EXPECT_THAT(
      text, ContainsRegex("; rank 2: ring forward, in plan step 3 of 0 to 3, has waited [0-9.]+ s on channel "
                          "'activations' for k, v\\[3\\] rows 0:24 heads 0:2 from rank 1, "
                          "which sends it in plan step 2; rank 1 was last heard of in plan step 1"));
  EXPECT_THAT(text, ContainsRegex("; rank 0: ring forward, in plan step 3 of 0 to 3, has waited"));
  EXPECT_THAT(text, Not(HasSubstr("; rank 3: ")));  // has done its part
}

TEST(Stall, TellsApartWhatHasArrivedOfAnExchangeWithMany) {
  const std::string text =
      told("all-gather", {.rank = 2, .compute = 0},
           {0, 1, [](const Progress& p) { return p.computes[1] >= 1 && p.computes[3] >= 1; }});
  EXPECT_THAT(text, ContainsRegex(
                        "; rank 0: all-gather forward, in plan step 1 of 0 to [0-9], has waited [0-9.]+ s on "
                        "channel 'activations' for k, v\\[2\\] [^;]* from rank 2, which sends it in "
                        "plan step 0, and until rank 2 takes k, v\\[0\\] [^;]*; nothing has come from rank "
                        "2 in this pass"));
  EXPECT_THAT(text, Not(HasSubstr("from rank 1")));
}

// Ranks of a part of the job are named by their numbers in the job.
TEST(Stall, NamesRanksOfAGroup) {
  Progress progress;
  const Witness witness{2, 1, [](const Progress& p) { return p.computes[1] >= 1; }};
  const std::string text = error_text([&] {
    comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
      const auto group = communicator.split(communicator.rank() > 0 ? 1 : 0, communicator.rank());
      if (communicator.rank() > 0) attend(*group, "ring", {.rank = 1, .compute = 1}, witness, progress);
    });
  });
  EXPECT_THAT(text, mentions("from rank 2 (here rank 1), which sends it in plan step",
                             "; rank 2: ring forward, in plan step 0 of 0 to 2, computes since"));
}

}  // namespace
}  // namespace annulus::test
