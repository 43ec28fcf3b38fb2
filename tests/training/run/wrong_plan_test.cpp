// A wrong plan for the documents of a sequence that a run meets on its way.

#include <annulus/attention/plan/schedules.hpp>

#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

/// What happened on a rank.
struct Seen {
  std::int64_t updates = 0;         // that were made
  std::int64_t changed_after = -1;  // so many of them, a plan was changed
};

class WrongPlan : public TinyTest {
 protected:
  /// What two ranks are told when `change` is done to the steps of rank 1 in a plan of `pass` that it makes
  /// after its second optimizer step.
  std::vector<std::string> with(plan::Pass pass, const std::function<void(plan::Step&)>& change) {
    return messages(2, [&](int rank) {
      Seen& seen = seen_.at(static_cast<std::size_t>(rank));
      Hooks hooks;
      hooks.updated = [&seen](std::int64_t step, const Buffers&) { seen.updates = step; };
      hooks.make_plan = [=, &seen](const std::string& schedule, const plan::Problem& problem, plan::Pass of) {
        plan::Plan plan = plan::make_plan(schedule, problem, of);
        if (rank == 1 && of == pass && seen.updates >= 2 && seen.changed_after < 0) {
          seen.changed_after = seen.updates;
          plan.step = [inner = plan.step, change](int whose, int number) {
            plan::Step step = inner(whose, number);
            change(step);
            return step;
          };
        }
        return plan;
      };
      return std::pair(config_, hooks);
    });
  }

  void expect_end_within_the_update() const {
    const std::int64_t last = seen_[1].changed_after;
    ASSERT_GE(last, 2);
    ASSERT_LT(last, config_.train.steps);
    for (const Seen& seen : seen_) EXPECT_EQ(seen.updates, last);
    EXPECT_TRUE(fs::exists(checkpoint_of(config_, last)));
    EXPECT_FALSE(fs::exists(checkpoint_of(config_, last + 1)));
  }

  // Documents end inside most sequences.
  const Config config_ = tiny_.config("run", {"data.sequence_length=700", "train.micro_batches=4",
                                              "attention.mask=documents", "checkpoint.every=1"});
  std::array<Seen, 2> seen_;
};

TEST_F(WrongPlan, ThatComputesTooLittleEndsTheRunBeforeItsUpdate) {
  EXPECT_THAT(with(plan::Pass::forward, [](plan::Step& step) { step.computes.clear(); }),
              Each(HasSubstr("is never computed")));
  expect_end_within_the_update();
}

TEST_F(WrongPlan, ThatLosesAGradientEndsTheRunBeforeItsUpdate) {
  EXPECT_THAT(with(plan::Pass::backward,
                   [](plan::Step& step) {
                     std::erase_if(step.sends,
                                   [](const auto& t) { return t.slice.tensor == plan::Tensor::dk; });
                   }),
              Each(mentions("backward", "rank 1", "is lost")));
  expect_end_within_the_update();
}

TEST_F(WrongPlan, IsOneThatIsChangedNotOneThatIsMadeHere) {
  EXPECT_THAT(with(plan::Pass::backward, [](plan::Step&) {}), Each(std::string("no error")));
  EXPECT_GE(seen_[1].changed_after, 2);
  for (const Seen& seen : seen_) EXPECT_EQ(seen.updates, config_.train.steps);
}

}  // namespace
}  // namespace annulus::training::test
