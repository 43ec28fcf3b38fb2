#include <annulus/attention/plan/plan.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/support.hpp"
#include "support/error_text.hpp"

/// Plans of the builders, broken in one place each: the validator names the place.
namespace annulus::plan {
namespace {

using test::EditedPlan;
using test::make_problem;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

template <class... Texts>
void expect_found(const EditedPlan& plan, const Texts&... texts) {
  EXPECT_THAT(found(plan), Contains(mentions(texts...)));
}

/// 4 ranks with 4 rows each; 2 query heads to a kv head.
EditedPlan ring(Pass pass, std::string_view mask = "full") {
  return EditedPlan(make_ring(make_problem(4, 16, "contiguous", mask), pass));
}
EditedPlan burst(Pass pass = Pass::backward, std::string_view mask = "full") {
  return EditedPlan(make_burst(make_problem(4, 16, "contiguous", mask), pass));
}

template <class T>
T& find(std::vector<T>& entries, Tensor tensor) {
  const auto place =
      std::ranges::find_if(entries, [&](const T& entry) { return entry.slice.tensor == tensor; });
  EXPECT_NE(place, entries.end()) << "the plan has changed: adapt this test";
  return *place;
}

void erase(std::vector<Transfer>& transfers, Tensor tensor) {
  EXPECT_EQ(std::erase_if(transfers, [&](const Transfer& t) { return t.slice.tensor == tensor; }), 1u);
}

TEST(Validator, AcceptsTheUntouchedPlans) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    EXPECT_THAT(found(ring(pass)), IsEmpty());
    EXPECT_THAT(found(burst(pass)), IsEmpty());
  }
}

TEST(Validator, FindsQueriesThatDoNotStay) {
  const Problem problem = make_problem(4, 16, "contiguous", "full");
  EXPECT_TRUE(make_ring(problem, Pass::backward).queries_stay);
  EXPECT_TRUE(make_all_gather(problem, Pass::forward).queries_stay);
  EXPECT_FALSE(make_ulysses(make_problem(2, 16, "contiguous", "full"), Pass::forward).queries_stay);
  Plan plan = make_burst(problem, Pass::backward);
  EXPECT_FALSE(plan.queries_stay);
  plan.queries_stay = true;
  EXPECT_THAT(violations(plan), Contains(mentions("rank 0", "queries of rank", "queries stay")));
}

// --- Coverage ------------------------------------------------------------

TEST(Validator, NamesShardPairsThatAreNotComputed) {
  EditedPlan plan = ring(Pass::forward);
  plan.at(2, 1).computes.clear();
  expect_found(plan, "q[2] x kv[1]");
}

TEST(Validator, CountsRowsAndHeadsThatAreNotComputed) {
  EditedPlan plan = ring(Pass::forward, "causal");
  plan.at(2, 0).computes.front().heads = {0, 3};  // 10 unmasked pairs a head
  expect_found(plan, "q[2] x kv[2]: 10 of 40");
}

TEST(Validator, NamesBothComputesThatCoverTheSame) {
  EditedPlan plan = ring(Pass::forward);
  Compute again = plan.at(1, 1).computes.front();
  again.kv_rows = {2, 3};
  again.heads = {3, 4};
  plan.at(1, 1).computes.push_back(again);
  expect_found(plan, "4 (query, key, head)",
               "rank 1, step 1: compute q[1] rows 0:4 x kv[0] rows 0:4 heads 0:4",
               "rank 1, step 1: compute q[1] rows 0:4 x kv[0] rows 2:3 heads 3:4");
}

TEST(Validator, AllowsComputesToOverlapWhereTheMaskIsEmpty) {
  EditedPlan plan = ring(Pass::forward, "causal");
  // Rows 0:2 x keys 0:4 and rows 1:4 x … would share row 1; these two share only (row 0, key 3), which is
  // masked.
  plan.at(2, 0).computes = {
      {2, 2, {0, 1}, {0, 4}, {0, 4}}, {2, 2, {0, 4}, {3, 4}, {0, 4}}, {2, 2, {1, 4}, {0, 3}, {0, 4}}};
  EXPECT_THAT(found(plan), IsEmpty());
}

// --- Structure ------------------------------------------------------------

TEST(Validator, RefusesWhatIsOutsideShardsHeadsRanksAndSteps) {
  const std::pair<void (*)(Step&), const char*> cases[] = {
      {[](Step& s) { s.computes[0].q_rows.end = 5; }, "rows 0:5 are no rows of shard 1, which has 4"},
      {[](Step& s) {
         s.computes[0].kv_rows = {2, 2};
       },
       "rows 2:2"},
      {[](Step& s) { s.computes[0].heads.end = 5; }, "heads 0:5 are not among the 4 heads"},
      {[](Step& s) { s.computes[0].kv_shard = 4; }, "rank 4 does not exist"},
      {[](Step& s) { s.computes[0].kv_slot = -1; }, "slot -1 does not exist"},
      {[](Step& s) { s.sends[0].slice.heads.end = 3; }, "heads 0:3 are not among the 2 heads"},
      {[](Step& s) { s.sends[0].peer = -1; }, "rank -1 does not exist"},
      {[](Step& s) { s.sends[0].post = 0; }, "posted in step 0"},
      {[](Step& s) { s.sends[0].wait = 1; }, "waits in step 1"},
      {[](Step& s) { s.receives[0].wait = 4; }, "receive k[3] rows 0:4 heads 0:2 from rank 0 into slot 2"},
      {[](Step& s) { s.receives[0].on_receive = OnReceive::add; }, "only gradients"},
      {[](Step& s) { s.receives[0].on_receive = OnReceive::merge; }, "only o and lse"},
      {[](Step& s) { s.receives[0].on_receive = OnReceive::add, s.receives[0].target = s.receives[0].slot; },
       "lands in the slot that it is added to"},
      {[](Step& s) {
         s.clears.push_back({{Tensor::o, 1, {0, 4}, {0, 4}}, local_slot});
       },
       "clear o[1]"}};
  for (const auto& [change, words] : cases) {
    EditedPlan plan = ring(Pass::forward);
    change(plan.at(1, 1));
    expect_found(plan, "rank 1, step 1", words);
  }
}

// --- Matching ------------------------------------------------------------

TEST(Validator, NamesMessagesThatMeetInAnotherOrder) {
  EditedPlan plan = ring(Pass::forward);
  std::swap(plan.at(0, 1).sends[0], plan.at(0, 1).sends[1]);
  expect_found(plan, "messages from rank 0 to rank 1 on channel activations: number 2",
               "v[3] rows 0:4 heads 0:2 (rank 0, step 1)", "k[3] rows 0:4 heads 0:2 (rank 1, step 1)");
}

TEST(Validator, NamesMessagesWithoutPartner) {
  EditedPlan plan = ring(Pass::forward);
  erase(plan.at(0, 2).sends, Tensor::v);
  expect_found(plan, "rank 1, step 2: receive v[2]", "has no send");
  plan = ring(Pass::forward);
  erase(plan.at(1, 2).receives, Tensor::v);
  expect_found(plan, "rank 0, step 2: send v[2]", "has no receive");
}

TEST(Validator, NamesWireTypesThatDiffer) {
  EditedPlan plan = burst();
  plan.at(0, 0).sends[0].wire = DType::bf16;
  expect_found(plan, "is sent as bf16 (rank 0, step 0)", "received as f32 (rank 1, step 0)");
}

// --- Slots ------------------------------------------------------------

TEST(Validator, NamesWhatASlotHoldsInstead) {
  EditedPlan plan = ring(Pass::forward);
  plan.at(2, 2).computes.front().kv_slot = local_slot;
  expect_found(plan, "rank 2, step 2: compute q[2] rows 0:4 x kv[0] rows 0:4 heads 0:4",
               "k[0] rows 0:4 heads 0:2 in local, which holds k[2] rows 0:4 heads 0:2");
  plan = ring(Pass::forward);
  plan.at(2, 2).sends.front().slot = 7;
  expect_found(plan, "needs k[0] rows 0:4 heads 0:2 in slot 7, which is undefined");
}

TEST(Validator, FindsReadsOfSlotsThatAreStillReceivedInto) {
  EditedPlan plan = ring(Pass::forward);
  find(plan.at(2, 0).receives, Tensor::v).wait = 2;
  expect_found(plan, "rank 2, step 1: compute q[2]",
               "needs v[1] rows 0:4 heads 0:2 in slot 1 while it is received into");
}

TEST(Validator, FindsReceivesIntoSlotsThatAreStillSent) {
  EditedPlan plan = ring(Pass::forward);
  find(plan.at(2, 1).sends, Tensor::k).wait = 3;  // slot 1 is received into again in step 2
  expect_found(plan, "rank 2, step 2: receive k[3]", "overwrites slot 1 while it is sent from");
}

TEST(Validator, FindsSlotsThatAreReceivedIntoTooEarly) {
  EditedPlan plan = ring(Pass::forward);
  find(plan.at(2, 1).receives, Tensor::k).slot = 1;  // what this step computes with
  expect_found(plan, "rank 2, step 1: receive k[0]", "overwrites slot 1 while it is sent from");
}

TEST(Validator, FindsSumsThatChangeWhileTheyAreSent) {
  EditedPlan plan = burst();
  Compute late = plan.at(3, 3).computes.front();  // q[0], whose sum leaves in step 4
  late.heads = {0, 1};
  plan.at(3, 3).computes.front().heads = {1, 4};
  plan.at(3, 4).computes.push_back(late);
  expect_found(plan, "rank 3, step 4: compute q[0] rows 0:4 x kv[3] rows 0:4 heads 0:1",
               "dq[0] rows 0:4 heads 0:1 in slot 1 while it is sent");
}

TEST(Validator, FindsClearsOfSlotsThatAreStillSent) {
  EditedPlan plan = burst();
  find(plan.at(1, 2).sends, Tensor::dq).wait = 4;  // the slot is cleared again in step 3
  expect_found(plan, "rank 1, step 3: clear dq[2]", "overwrites slot 1 while it is sent from");
}

TEST(Validator, FindsAdditionsToSlotsThatAreSentOrUndefined) {
  EditedPlan plan = burst();
  find(plan.at(2, 2).receives, Tensor::dq).target =
      1;  // holds dq[1], sent until step 3; dq[0] belongs into slot 2
  expect_found(plan, "rank 2, step 3: receive dq[0]", "in slot 1, which holds dq[1]");
  plan = burst();
  find(plan.at(2, 2).receives, Tensor::dq).target = 5;
  expect_found(plan, "in slot 5, which is undefined");
}

TEST(Validator, ProtectsWhatTheRankOwns) {
  EditedPlan plan = ring(Pass::forward);
  find(plan.at(0, 0).receives, Tensor::k).slot = local_slot;
  expect_found(plan, "rank 0, step 0: receive k[3]", "would overwrite what the rank owns");
}

TEST(Validator, KnowsWhichTensorsAPassHas) {
  EditedPlan plan = ring(Pass::forward);
  plan.at(0, 1).clears.push_back({{Tensor::q, 1, {0, 4}, {0, 4}}, 1});
  expect_found(plan, "q is no sum of the forward");
  plan = ring(Pass::forward);
  plan.message(0, 1, {Tensor::dq, 0, {0, 4}, {0, 4}}, 0, local_slot, 1);
  expect_found(plan,
               "send dq[0] rows 0:4 heads 0:4 from local to rank 1: needs "
               "dq[0] rows 0:4 heads 0:4 in local, which is undefined");
}

// --- Sums ------------------------------------------------------------

TEST(Validator, NamesSumsThatNeverReturn) {
  EditedPlan plan = burst();
  erase(plan.at(2, 3).sends, Tensor::dq);  // dq[0] of ranks 1 and 2 on its way to rank 3
  erase(plan.at(3, 3).receives, Tensor::dq);
  EXPECT_THAT(found(plan),
              ElementsAre(mentions("rank 2, step 5", "the sum dq[0] rows 0:4 heads 0:4 in slot 2")));
}

TEST(Validator, NamesWhatOfASumStaysBehind) {
  EditedPlan plan = ring(Pass::backward);
  find(plan.at(3, 4).sends, Tensor::dv).slice.heads.end = 1;
  find(plan.at(0, 4).receives, Tensor::dv).slice.heads.end = 1;
  EXPECT_THAT(found(plan), ElementsAre(mentions("the sum dv[0] rows 0:4 heads 1:2 in slot 1")));
}

TEST(Validator, FindsSumsThatAreOverwrittenBeforeTheyAreSent) {
  EditedPlan plan = burst();
  Clear again = find(plan.at(1, 1).clears, Tensor::dq);
  plan.at(1, 2).clears.insert(plan.at(1, 2).clears.begin(), again);  // leaves in this step
  expect_found(plan, "rank 1, step 2: clear dq[0] rows 0:4 heads 0:4 in slot 1", "the sum dq[0]");
}

TEST(Validator, FindsSumsThatAreSentTwice) {
  EditedPlan plan = burst();
  plan.at(3, 4).sends.push_back(find(plan.at(3, 4).sends, Tensor::dq));
  Transfer again = find(plan.at(0, 4).receives, Tensor::dq);
  again.slot = 4;
  plan.at(0, 4).receives.push_back(again);
  EXPECT_THAT(
      found(plan),
      ElementsAre(mentions("rank 3, step 4: send dq[0] rows 0:4 heads 0:4 from slot 1 to rank 0", "twice")));
}

TEST(Validator, FindsContributionsThatComeTooLateForTheirSum) {
  EditedPlan plan = burst();
  plan.add_step();
  Compute late = plan.at(3, 3).computes.front();  // q[0], whose sum has left in step 4
  plan.at(3, 3).computes.clear();
  plan.at(3, 5).computes.push_back(late);
  late.q_slot = late.out_slot;
  expect_found(plan, "rank 3, step 5: compute q[0]",
               "adds to dq[0] rows 0:4 heads 0:4 in slot 1, which has been "
               "sent on");
}

TEST(Validator, FindsSumsThatAreStoredOverWhatWasComputed) {
  EditedPlan plan = burst();
  Transfer& receive = find(plan.at(2, 2).receives, Tensor::dq);
  receive.on_receive = OnReceive::store;
  receive.slot = 2;  // where step 2 computes
  expect_found(plan, "rank 2, step 2: compute q[0]", "in slot 2 while it is received into");
}

// --- Progress ------------------------------------------------------------

TEST(Validator, NamesRanksThatWaitForOneAnother) {
  EditedPlan plan(make_ring(make_problem(2, 8, "contiguous", "full"), Pass::forward));
  plan.add_step();
  for (int rank = 0; rank < 2; ++rank) {  // every rank sends only after it has received
    plan.at(rank, 1).sends = plan.at(rank, 0).sends;
    plan.at(rank, 0).sends.clear();
    for (Transfer& send : plan.at(rank, 1).sends) {
      send.post = 1;
      send.wait = 2;
    }
  }
  const auto stuck = [](int rank, int peer) {
    return mentions("deadlock", fmt::format("rank {} waits in step 1 for 'receive k[{}]", rank, peer),
                    fmt::format("from rank {}", peer));
  };
  EXPECT_THAT(found(plan), ElementsAre(stuck(0, 1), stuck(1, 0)));
}

TEST(Validator, FindsOrdersThatASerialBackEndCannotRun) {
  // Rank 0 sends k, then (on the other channel) v; rank 1 has the receives the other way round.
  EditedPlan plan(make_ring(make_problem(2, 8, "contiguous", "causal"), Pass::forward));
  ASSERT_THAT(found(plan), IsEmpty());
  plan.add_step();
  for (int rank = 0; rank < 2; ++rank) {  // the remote pair is computed a step later
    std::swap(plan.at(rank, 2).computes, plan.at(rank, 1).computes);
  }
  const auto move = [](std::vector<Transfer>& from, std::vector<Transfer>& to, Tensor tensor) {
    to.push_back(find(from, tensor));
    to.back().post = 1;
    erase(from, tensor);
  };
  move(plan.at(0, 0).sends, plan.at(0, 1).sends, Tensor::v);
  find(plan.at(0, 1).sends, Tensor::v).channel = Channel::gradients;
  find(plan.at(1, 0).receives, Tensor::v).channel = Channel::gradients;
  for (Step* step : {&plan.at(0, 0), &plan.at(0, 1), &plan.at(1, 0)}) {
    for (Transfer& transfer : step->sends) transfer.wait = 2;
    for (Transfer& transfer : step->receives) transfer.wait = 2;
  }
  EXPECT_THAT(found(plan), IsEmpty());  // both orders agree as long as rank 1 has posted k as well
  move(plan.at(1, 0).receives, plan.at(1, 1).receives, Tensor::k);
  expect_found(plan, "deadlock: rank 0 waits in step 2",
               "is held up in its group of step 0 on channel activations",
               "rank 1 is held up in its group of step 0 on channel gradients");
}

// --- Reporting ------------------------------------------------------------

TEST(Validator, ThrowsTheFirstViolations) {
  EditedPlan plan = ring(Pass::forward);
  EXPECT_NO_THROW(validate(plan.finish()));
  for (int rank = 0; rank < 4; ++rank) {
    for (int step = 1; step < 4; ++step) plan.at(rank, step).computes.clear();
  }
  EXPECT_THAT(error_text([&] { validate(plan.finish()); }),
              mentions("plan 'ring' (forward)", "q[0] x kv[1]", "2 more"));
}

TEST(Validator, StopsCollectingAfterAHundred) {
  EditedPlan plan(make_ring(make_problem(16, 64, "contiguous", "full"), Pass::forward));
  for (auto& rank : plan.steps) {
    for (Step& step : rank) step.computes.clear();
  }
  EXPECT_EQ(found(plan).size(), 100u);
}

TEST(Validator, IsQuickOnManyRanks) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(violations(make_burst(make_problem(64, 4096, "zigzag", "causal"), Pass::backward)), IsEmpty());
  // Takes about 0.1 s; the limit leaves room for sanitizers and loaded machines.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace annulus::plan
