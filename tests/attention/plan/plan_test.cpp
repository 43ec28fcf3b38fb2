#include <annulus/attention/plan/plan.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "support/error_text.hpp"

namespace annulus::plan {
namespace {

using test::EditedPlan;
using test::make_problem;
using testing::HasSubstr;

TEST(Problem, SlicesHaveTheRowsAndHeadsOfTheirSide) {
  Problem problem = make_problem(3, 10, "contiguous", "full");  // 4, 3, 3 rows
  EXPECT_EQ(problem.whole(Tensor::q, 0), (TensorSlice{Tensor::q, 0, {0, 4}, {0, 4}}));
  EXPECT_EQ(problem.whole(Tensor::dv, 2), (TensorSlice{Tensor::dv, 2, {0, 3}, {0, 2}}));
  EXPECT_EQ(problem.elements(problem.whole(Tensor::d_o, 0)), 3 * 4 * 4 * 8);
  EXPECT_EQ(problem.elements(problem.whole(Tensor::lse, 0)), 3 * 4 * 4);
  EXPECT_EQ(problem.elements(problem.whole(Tensor::k, 1)), 3 * 2 * 3 * 8);
  EXPECT_EQ(problem.elements({Tensor::k, 1, {1, 3}, {1, 2}}), 3 * 1 * 2 * 8);
}

TEST(Problem, SumsTravelInSinglePrecisionAndActivationsAsStored) {
  Problem problem = make_problem(2, 8, "contiguous", "full");
  problem.dtype = DType::bf16;
  for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v, Tensor::d_o}) {
    EXPECT_EQ(problem.wire(tensor), DType::bf16) << name_of(tensor);
  }
  for (const Tensor tensor : {Tensor::o, Tensor::lse, Tensor::d, Tensor::dq, Tensor::dk, Tensor::dv}) {
    EXPECT_EQ(problem.wire(tensor), DType::f32) << name_of(tensor);
  }
}

TEST(Problem, NamesWhatMakesNoSense) {
  const auto check_with = [](auto change) {
    Problem problem = make_problem(2, 8, "contiguous", "full");
    change(problem);
    return error_text([&] { problem.check(); });
  };
  EXPECT_EQ(check_with([](Problem&) {}), "no error");
  EXPECT_THAT(check_with([](Problem& p) { p.heads = 0; }), HasSubstr("heads is 0"));
  EXPECT_THAT(check_with([](Problem& p) { p.kv_heads = 0; }), HasSubstr("kv_heads is 0"));
  EXPECT_THAT(check_with([](Problem& p) { p.kv_heads = 3; }),
              HasSubstr("heads (4) is not a multiple of kv_heads (3)"));
  EXPECT_THAT(check_with([](Problem& p) { p.head_dim = 0; }), HasSubstr("head_dim is 0"));
  EXPECT_THAT(check_with([](Problem& p) { p.batch = -1; }), HasSubstr("batch is -1"));
  EXPECT_THAT(check_with([](Problem& p) { p.dtype = DType::i32; }), HasSubstr("dtype i32"));
  EXPECT_THAT(check_with([](Problem& p) { p.heads = p.kv_heads = 1 << 17; }), HasSubstr("heads is 131072"));
  // 64 bits do not count these pairs, or these bytes.
  EXPECT_THAT(check_with([](Problem& p) {
                p.mask = Mask::parse("full", Mask::max_tokens, "mask");
                p.batch = 1000;
              }),
              HasSubstr("pairs of query and key"));
  EXPECT_THAT(check_with([](Problem& p) {
                p.mask = Mask::parse("window:0,0", Mask::max_tokens, "mask");
                p.head_dim = 1 << 14;
                p.batch = 10000;
              }),
              HasSubstr("bytes of transfers"));
}

TEST(Plan, IsTheSameEveryTime) {
  const Problem problem = make_problem(4, 50, "zigzag", "causal");
  EXPECT_EQ(make_burst(problem, Pass::backward), make_burst(problem, Pass::backward));
  EXPECT_EQ(make_ring(problem, Pass::forward), EditedPlan(make_ring(problem, Pass::forward)).finish());
}

TEST(Plan, DiffersWhereAnythingDiffers) {
  const Problem problem = make_problem(4, 50, "zigzag", "causal");
  const Plan plan = make_ring(problem, Pass::backward);
  EXPECT_FALSE(plan == make_ring(problem, Pass::forward));
  EXPECT_FALSE(plan == make_burst(problem, Pass::backward));
  EXPECT_FALSE(make_ring(problem, Pass::forward) ==
               make_burst(problem, Pass::forward));  // only the name differs
  EXPECT_FALSE(plan == make_ring(make_problem(5, 50, "zigzag", "causal"), Pass::backward));
  EXPECT_FALSE(plan == make_ring(make_problem(4, 51, "zigzag", "causal"), Pass::backward));

  EditedPlan edited(plan);
  ASSERT_EQ(plan, edited.finish());
  edited.at(3, 2).receives.back().slot += 1;
  EXPECT_FALSE(plan == edited.finish());
}

TEST(Plan, RefusesRanksAndStepsThatDoNotExist) {
  const Plan plan = make_ring(make_problem(2, 8, "contiguous", "full"), Pass::forward);
  EXPECT_THAT(error_text([&] { plan.step(2, 0); }), HasSubstr("rank 2 is not one of the 2 ranks"));
  EXPECT_THAT(error_text([&] { plan.step(-1, 0); }), HasSubstr("rank -1"));
  EXPECT_THAT(error_text([&] { plan.step(0, 2); }), HasSubstr("step 2 is not one of the 2 steps"));
}

TEST(Plan, PrintsALineForEachThingToDo) {
  Problem problem = make_problem(2, 9, "contiguous", "full");
  problem.dtype = DType::bf16;
  const Plan plan = make_burst(problem, Pass::backward);
  EXPECT_EQ(
      to_string(plan, 1),
      "burst backward: 4 steps, " + problem.topology.to_string() +
          ", 9 tokens, layout contiguous, mask full, 4 heads (2 kv) of 8, batch 3, bf16\n"
          "rank 1 (node 0)\n"
          "  step 0\n"
          "    send q[1] rows 0:4 heads 0:4 from local to rank 0; bf16, activations, wait 1\n"
          "    send do[1] rows 0:4 heads 0:4 from local to rank 0; bf16, activations, wait 1\n"
          "    send lse[1] rows 0:4 heads 0:4 from local to rank 0; f32, activations, wait 1\n"
          "    send d[1] rows 0:4 heads 0:4 from local to rank 0; f32, activations, wait 1\n"
          "    receive q[0] rows 0:5 heads 0:4 from rank 0 into slot 1; bf16, activations, wait 1\n"
          "    receive do[0] rows 0:5 heads 0:4 from rank 0 into slot 1; bf16, activations, wait 1\n"
          "    receive lse[0] rows 0:5 heads 0:4 from rank 0 into slot 1; f32, activations, wait 1\n"
          "    receive d[0] rows 0:5 heads 0:4 from rank 0 into slot 1; f32, activations, wait 1\n"
          "    compute q[1] rows 0:4 x kv[1] rows 0:4 heads 0:4; q local, kv local, dq local, dkv local\n"
          "  step 1\n"
          "    clear dq[0] rows 0:5 heads 0:4 in slot 1\n"
          "    compute q[0] rows 0:5 x kv[1] rows 0:4 heads 0:4; q slot 1, kv local, dq slot 1, dkv local\n"
          "  step 2\n"
          "    send dq[0] rows 0:5 heads 0:4 from slot 1 to rank 0; f32, gradients, wait 3\n"
          "    receive dq[1] rows 0:4 heads 0:4 from rank 0 into slot 3, add to local; f32, gradients, wait "
          "3\n"
          "  step 3\n");
}

TEST(Plan, PrintsTheForwardOfAllRanks) {
  const std::string text = to_string(make_ring(make_problem(2, 9, "contiguous", "causal"), Pass::forward));
  EXPECT_THAT(text, HasSubstr("ring forward: 2 steps"));
  EXPECT_THAT(text, HasSubstr("rank 0 (node 0)\n  step 0\n    send k[0]"));
  EXPECT_THAT(text, HasSubstr("rank 1 (node 0)\n  step 0\n    receive k[0]"));
  EXPECT_THAT(text,
              HasSubstr("compute q[1] rows 0:4 x kv[0] rows 0:5 heads 0:4; q local, kv slot 1, o local\n"));
}

TEST(Traffic, CountsElementsBytesNodesAndPairs) {
  Problem problem = make_problem(3, 9, "contiguous", "causal");  // nodes {0, 1}, {2}
  problem.dtype = DType::bf16;
  EditedPlan plan(Pass::forward, problem, 2);
  plan.message(0, 1, {Tensor::k, 0, {0, 2}, {0, 2}}, 0, local_slot, 1);    // 3·2·2·8 = 96
  plan.message(0, 2, {Tensor::lse, 0, {0, 3}, {0, 4}}, 0, local_slot, 1);  // 3·3·4 = 36
  plan.at(0, 1).computes = {{0, 0, {0, 3}, {0, 3}, {0, 4}}, {1, 0, {1, 2}, {0, 3}, {1, 2}}};
  const Traffic sender = traffic(plan.finish(), 0);
  EXPECT_EQ(sender.sent[static_cast<int>(Tensor::k)], 96);
  EXPECT_EQ(sender.sent[static_cast<int>(Tensor::lse)], 36);
  EXPECT_EQ(total_sent(sender), 132);
  EXPECT_EQ(sender.sent_bytes, 2 * 96 + 4 * 36);
  EXPECT_EQ(sender.sent_bytes_inter_node, 4 * 36);
  EXPECT_EQ(sender.received_bytes, 0);
  EXPECT_EQ(sender.pairs, 4 * 6 + 3);
  const Traffic receiver = traffic(plan.finish(), 1);
  EXPECT_EQ(receiver.received[static_cast<int>(Tensor::k)], 96);
  EXPECT_EQ(receiver.received_bytes, 2 * 96);
  EXPECT_EQ(receiver.sent_bytes, 0);
  EXPECT_EQ(receiver.pairs, 0);
}

TEST(Schedules, AreKnownByName) {
  const Problem problem = make_problem(4, 20, "striped", "causal");
  EXPECT_THAT(schedule_names(),
              testing::IsSupersetOf({"ring", "burst", "topology-burst", "double-ring", "hierarchical"}));
  EXPECT_THAT(schedule_names(),
              testing::IsSupersetOf({"all-gather", "helper-worker", "ulysses", "hybrid:HxC"}));
  for (const std::string& name : schedule_names()) {
    EXPECT_NO_THROW(check_schedule(name));
    if (!test::serves(name, problem)) continue;
    EXPECT_EQ(make_plan(name, problem, Pass::backward).schedule, name);
  }
  EXPECT_EQ(make_plan("burst", problem, Pass::backward), make_burst(problem, Pass::backward));
  const std::string message =
      fmt::format("--schedule: there is no schedule 'brust'; did you mean 'burst'? known are {}",
                  fmt::join(schedule_names(), ", "));
  EXPECT_EQ(error_text([&] { make_plan("brust", problem, Pass::forward, "--schedule"); }), message);
  EXPECT_EQ(error_text([&] { check_schedule("brust", "--schedule"); }), message);
}

TEST(Schedules, TakeArgumentsBehindAColon) {
  const Problem problem = make_problem(6, 20, "striped", "causal");
  const auto error = [&](std::string_view name) {
    return error_text([&] { make_plan(name, problem, Pass::forward, "attention.schedule"); });
  };
  EXPECT_NO_THROW(check_schedule("double-ring:3"));
  EXPECT_EQ(make_plan("double-ring:3", problem, Pass::backward),
            make_double_ring(problem, Pass::backward, 3));
  EXPECT_EQ(make_plan("double-ring:3", problem, Pass::backward).schedule, "double-ring:3");
  EXPECT_EQ(error("ring:3"), "attention.schedule: schedule 'ring' takes no argument, but has ':3'");
  for (const char* wrong : {"", "0", "-2", "two", "3x"}) {
    EXPECT_EQ(
        error(fmt::format("double-ring:{}", wrong)),
        fmt::format("attention.schedule: 'double-ring:{0}': '{0}' is no positive number of ranks", wrong));
  }
}

}  // namespace
}  // namespace annulus::plan
