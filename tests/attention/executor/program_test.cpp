// Resolving plans to places in memory, without Kokkos and communication.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/buffers.hpp"
#include "attention/executor/proof/handmade.hpp"
#include "attention/executor/proof/program.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

using executor::Program;
using executor::ProgramMessage;
using executor::StridedBlock;
using plan::Tensor;

plan::Problem problem(int ranks, int batch = 1) {
  return {.topology = Topology::uniform(ranks, ranks),
          .layout = Layout::parse("contiguous"),
          .mask = Mask::parse("causal", 60),
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .batch = batch,
          .dtype = DType::bf16};
}

TEST(DistributedProgram, BlockInsideWhatASlotHolds) {
  const plan::TensorSlice held{Tensor::q, 1, {10, 30}, {0, 4}};
  const StridedBlock block = executor::block_of(held, {Tensor::q, 1, {12, 17}, {1, 3}}, 2, problem(1, 3));
  EXPECT_EQ(block.slot, 2);
  EXPECT_EQ(block.head_stride, 20 * 16);
  EXPECT_EQ(block.batch_stride, 4 * 20 * 16);
  EXPECT_EQ(block.offset, 1 * 20 * 16 + 2 * 16);
  EXPECT_EQ(block.elements(), 3 * 2 * 5 * 16);
  EXPECT_FALSE(block.contiguous());
}

TEST(DistributedProgram, Contiguity) {
  const plan::TensorSlice held{Tensor::k, 0, {0, 20}, {0, 4}};
  const auto contiguous = [&](RowRange rows, plan::HeadRange heads, int batch) {
    return executor::block_of(held, {Tensor::k, 0, rows, heads}, 1, problem(1, batch)).contiguous();
  };
  EXPECT_TRUE(contiguous({0, 20}, {0, 4}, 3));
  EXPECT_TRUE(contiguous({0, 20}, {1, 3}, 1));   // whole rows of some heads
  EXPECT_FALSE(contiguous({0, 20}, {1, 3}, 2));  // but not of several sequences
  EXPECT_TRUE(contiguous({3, 9}, {2, 3}, 1));    // some rows of one head
  EXPECT_FALSE(contiguous({3, 9}, {2, 4}, 1));
  EXPECT_FALSE(contiguous({3, 9}, {2, 3}, 2));
  EXPECT_TRUE(contiguous({3, 3}, {0, 4}, 2));  // nothing at all
}

// What one pass alone needs shares memory with what the other alone needs; nothing else does.
TEST(DistributedProgram, PassesShareExchangeBuffers) {
  executor::PassCapacity capacity;
  const auto slots = [](executor::Capacity& of, Tensor tensor) -> std::vector<std::int64_t>& {
    return of.slots[static_cast<std::size_t>(tensor)];
  };
  slots(capacity.forward, Tensor::k) = {0, 512, 100};
  slots(capacity.forward, Tensor::q) = {0, 128};
  slots(capacity.backward, Tensor::q) = {0, 256};
  slots(capacity.backward, Tensor::dq) = {0, 256};  // fp32
  capacity.backward.staging = {300};
  const executor::ExchangeLayout layout = executor::exchange_layout(capacity, DType::bf16);
  const auto offset = [&](Tensor tensor, std::size_t slot) {
    return layout.slots[static_cast<std::size_t>(tensor)][slot];
  };
  EXPECT_EQ(offset(Tensor::q, 1), 0u);  // of both, 512 bytes
  EXPECT_EQ(offset(Tensor::k, 1), 512u);
  EXPECT_EQ(offset(Tensor::k, 2), 512u + 1024u);
  EXPECT_EQ(offset(Tensor::dq, 1), 512u);
  EXPECT_EQ(layout.staging, std::vector<std::size_t>{512u + 1024u});
  EXPECT_EQ(layout.bytes, 512u + 1024u + 512u);
}

TEST(DistributedProgram, RingNeedsTwoSlotsAndNoStaging) {
  const plan::Plan plan = plan::make_ring(problem(4), plan::Pass::forward);
  const Program program = executor::make_program(plan, 3, {});
  EXPECT_TRUE(program.capacity.staging.empty());
  const auto& slots = program.capacity.slots[static_cast<std::size_t>(Tensor::k)];
  ASSERT_EQ(slots.size(), 3u);  // home is listed and empty
  EXPECT_EQ(slots[0], 0);
  EXPECT_EQ(slots[1], 2 * 15 * 16);
  EXPECT_EQ(slots[2], 2 * 15 * 16);
  for (const executor::Exchange& exchange : program.exchanges) {
    for (const ProgramMessage& m : exchange.receives) EXPECT_EQ(m.bytes, 2u * 2 * 15 * 16);
  }
}

// What profilers show.
TEST(DistributedProgram, StepsAreNamedByWhatTheyDo) {
  plan::Problem all = problem(4);
  all.mask = Mask::parse("full", 60);
  const Program program = executor::make_program(plan::make_ring(all, plan::Pass::forward), 3, {});
  EXPECT_EQ(program.steps[1].names.step, "ring forward step 1");
  EXPECT_EQ(program.steps[1].names.wait,
            "ring forward step 1: wait for k, v[2] rows 0:15 heads 0:2 from rank 2; k, v[3] rows 0:15 heads "
            "0:2 to rank 0");
  EXPECT_EQ(program.steps[1].names.post,
            "ring forward step 1: post k, v[1] rows 0:15 heads 0:2 from rank 2; k, v[2] rows 0:15 heads 0:2 "
            "to rank 0");
  EXPECT_EQ(program.steps[1].names.compute,
            "ring forward step 1: compute q[3] rows 0:15 x kv[2] rows 0:15 heads 0:4");
}

TEST(DistributedProgram, EveryExchangeIsPostedThenWaitedForOnce) {
  for (const auto pass : {plan::Pass::forward, plan::Pass::backward}) {
    for (int rank = 0; rank < 4; ++rank) {
      const Program program = executor::make_program(plan::make_burst(problem(4), pass), rank, {});
      std::set<int> posted, waited;
      for (const executor::ProgramStep& step : program.steps) {
        for (const int e : step.waits) EXPECT_TRUE(posted.contains(e) && waited.insert(e).second);
        for (const int e : step.posts) EXPECT_TRUE(posted.insert(e).second);
      }
      EXPECT_EQ(posted.size(), program.exchanges.size());
      EXPECT_EQ(waited.size(), program.exchanges.size());
    }
  }
}

TEST(DistributedProgram, StagingIsReusedAndNeverShared) {
  const plan::Plan plan = make_helper(problem(2, 2), plan::Pass::backward, {3, 17}, {1, 3});
  for (int rank = 0; rank < 2; ++rank) {
    const Program program = executor::make_program(plan, rank, {});
    std::size_t staged = 0;
    for (std::size_t a = 0; a < program.steps.size(); ++a) {
      std::set<int> busy;  // by exchanges that travel in step a
      for (std::size_t s = 0; s <= a; ++s) {
        for (const int e : program.steps[s].posts) {
          const auto& exchange = program.exchanges[static_cast<std::size_t>(e)];
          if (exchange.wait <= static_cast<int>(a)) continue;
          for (const auto* messages : {&exchange.sends, &exchange.receives}) {
            for (const ProgramMessage& m : *messages) {
              if (m.staging == ProgramMessage::none) continue;
              EXPECT_TRUE(busy.insert(m.staging).second);
              EXPECT_LE(m.bytes, program.capacity.staging.at(static_cast<std::size_t>(m.staging)));
              ++staged;
            }
          }
        }
      }
    }
    EXPECT_EQ(staged > 0, rank == 1);  // rank 1 sends parts of its shard; rank 0 whole slots and shards
  }
}

TEST(DistributedProgram, CutsWhileTransfersTravelAndComputesTheSame) {
  const plan::Plan plan = plan::make_ring(problem(3, 2), plan::Pass::backward);
  const Program whole = executor::make_program(plan, 2, {});
  const Program cut = executor::make_program(plan, 2, {.least_pairs = 1, .threads = 1});
  ASSERT_EQ(whole.steps.size(), cut.steps.size());
  bool some = false;
  for (std::size_t s = 0; s < whole.steps.size(); ++s) {
    std::int64_t q[2] = {}, dk[2] = {};
    for (const auto& call : whole.steps[s].computes) q[0] += call.q.elements(), dk[0] += call.dk.elements();
    for (const auto& call : cut.steps[s].computes) {
      q[1] += call.q.elements(), dk[1] += call.dk.elements();
      EXPECT_EQ(call.q.heads, 2 * call.k.heads);
      EXPECT_EQ(call.q.offset % 16, 0);
    }
    EXPECT_EQ(q[0], q[1]);
    EXPECT_EQ(dk[0], dk[1]);
    some = some || cut.steps[s].computes.size() > whole.steps[s].computes.size();
  }
  EXPECT_TRUE(some);
}

/// Elements of O that calls finish, and that nobody does.
std::pair<std::int64_t, std::int64_t> finished_and_not(const Program& program) {
  std::int64_t finished = 0, unfinished = 0;
  for (const auto& step : program.steps)
    for (const auto& call : step.computes)
      if (call.finishes) finished += call.o.elements();
  for (const StridedBlock& block : program.unfinished) unfinished += block.elements();
  return {finished, unfinished};
}

TEST(DistributedProgram, CallsFinishRowsThatNobodyTouchesBehindThem) {
  constexpr std::int64_t all = 2 * 4 * 15 * 16;  // batch, heads, rows, head_dim
  const auto parts = [&](const char* schedule, const char* layout, int rank) {
    plan::Problem of = problem(4, 2);
    of.layout = Layout::parse(layout);
    const plan::Plan plan = plan::make_plan(schedule, of, plan::Pass::forward);
    const auto whole = finished_and_not(executor::make_program(plan, rank, {}));
    EXPECT_EQ(finished_and_not(executor::make_program(plan, rank, {.least_pairs = 1, .threads = 1})), whole);
    EXPECT_EQ(whole.first + whole.second, all / 15 * of.owned(rank).count);
    return whole;
  };
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto& [schedule, layout] : {std::pair("ring", "contiguous"),
                                           {"ring", "striped"},
                                           {"all-gather", "contiguous"},
                                           {"burst", "zigzag"}})
      EXPECT_EQ(parts(schedule, layout, rank), std::pair(all, std::int64_t{0}));
    // O of other heads than its own comes back from those who computed it.
    EXPECT_EQ(parts("ulysses", "contiguous", rank), std::pair(all / 4, all - all / 4));
  }
}

TEST(DistributedProgram, NoCallFinishesRowsThatAreMerged) {
  const plan::Plan plan = make_helper(problem(2, 2), plan::Pass::forward, {3, 17}, {1, 3});
  const Program program = executor::make_program(plan, 1, {});
  const auto [finished, unfinished] = finished_and_not(program);
  EXPECT_EQ(finished + unfinished, 2 * 4 * 30 * 16);
  EXPECT_GE(unfinished, 2 * 2 * 14 * 16);
}

TEST(DistributedProgram, PlansThatCannotBeRun) {
  using plan::Pass;
  using plan::Step;
  const auto none = [](Step&) {};
  const struct {
    Pass pass;
    std::function<void(Step&)> change;  // of step 0 of the ring's plan of rank 1 of 2
    const char* message;
  } cases[] = {
      {Pass::forward, none, "no error"},
      {Pass::forward, [](Step& s) { s.computes.at(0).q_slot = 1; }, "holds nothing"},
      {Pass::forward, [](Step& s) { s.computes.at(0).q_rows.end = 31; }, "30 rows"},
      {Pass::forward, [](Step& s) { s.computes.at(0).heads.end = 5; }, "heads [0, 5)"},
      {Pass::forward, [](Step& s) { s.computes.at(0).kv_shard = 0; }, "which holds k[1]"},
      {Pass::forward, [](Step& s) { s.receives.at(0).slot = plan::local_slot; }, "overwrites the caller's k"},
      {Pass::forward, [](Step& s) { s.receives.at(0).on_receive = plan::OnReceive::add; }, "adds up k"},
      {Pass::forward, [](Step& s) { s.receives.at(0).on_receive = plan::OnReceive::merge; }, "merges k"},
      {Pass::forward, [](Step& s) { s.receives.at(0).wait = 0; }, "a wait follows its post"},
      {Pass::forward, [](Step& s) { s.receives.at(0).wait = 99; }, "a wait follows its post"},
      {Pass::forward, [](Step& s) { s.receives.at(0).peer = 2; }, "rank 2 of 2"},
      {Pass::backward,
       [](Step& s) {
         s.clears.push_back({{Tensor::dk, 1, {0, 30}, {0, 2}}, plan::local_slot});
       },
       "clears the caller's dk"}};
  for (const auto& [pass, change, message] : cases) {
    plan::Plan plan = plan::make_ring(problem(2), pass);
    plan.step = [inner = plan.step, &change = change](int rank, int number) {
      Step step = inner(rank, number);
      if (number == 0) change(step);
      return step;
    };
    EXPECT_THAT(error_text([&] { executor::make_program(plan, 1, {}); }), testing::HasSubstr(message));
  }
}

}  // namespace
}  // namespace annulus::test
