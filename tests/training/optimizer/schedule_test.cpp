#include <annulus/training/optimizer/options.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace annulus::optimizer {
namespace {

TEST(LearningRateSchedule, WarmsUpThenFollowsTheCosine) {
  const LearningRateSchedule schedule{.lr = 3e-4, .min_lr = 3e-5, .warmup_steps = 10, .schedule_steps = 110};
  EXPECT_DOUBLE_EQ(schedule.at(0), 3e-5);  // a tenth of the peak
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.5e-4);
  EXPECT_DOUBLE_EQ(schedule.at(9), 3e-4);
  EXPECT_DOUBLE_EQ(schedule.at(59), (3e-4 + 3e-5) / 2);  // 50 of 100 updates after the peak
  EXPECT_DOUBLE_EQ(schedule.at(34), 3e-5 + 2.7e-4 * (2.0 + std::sqrt(2.0)) / 4.0);  // cos(pi / 4)
  EXPECT_DOUBLE_EQ(schedule.at(109), 3e-5);
  EXPECT_DOUBLE_EQ(schedule.at(1000000), 3e-5);
  for (int step = 1; step < 10; ++step) EXPECT_GT(schedule.at(step), schedule.at(step - 1));
  for (int step = 10; step < 110; ++step) EXPECT_LT(schedule.at(step), schedule.at(step - 1));
}

TEST(LearningRateSchedule, FollowsALineAConstantOrBoth) {
  using enum LearningRateSchedule::Curve;
  LearningRateSchedule schedule{
      .lr = 3e-4, .min_lr = 1e-4, .warmup_steps = 10, .schedule_steps = 110, .curve = linear};
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.5e-4);
  EXPECT_DOUBLE_EQ(schedule.at(9), 3e-4);
  EXPECT_DOUBLE_EQ(schedule.at(34), 2.5e-4);
  EXPECT_DOUBLE_EQ(schedule.at(109), 1e-4);
  EXPECT_DOUBLE_EQ(schedule.at(500), 1e-4);
  schedule.curve = constant;
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.5e-4);
  for (const int step : {9, 60, 109, 500}) EXPECT_DOUBLE_EQ(schedule.at(step), 3e-4);
  EXPECT_FALSE(schedule.ends());
  schedule.curve = wsd;
  for (const int step : {9, 60, 109, 500}) EXPECT_DOUBLE_EQ(schedule.at(step), 3e-4);  // no decay yet
  EXPECT_FALSE(schedule.ends());
  schedule.decay_steps = 20;
  for (const int step : {9, 60, 89}) EXPECT_DOUBLE_EQ(schedule.at(step), 3e-4);
  EXPECT_DOUBLE_EQ(schedule.at(94), 2.5e-4);
  EXPECT_DOUBLE_EQ(schedule.at(109), 1e-4);
  EXPECT_DOUBLE_EQ(schedule.at(500), 1e-4);
  schedule.decay_steps = 100;  // all that the warm-up leaves: the line
  EXPECT_DOUBLE_EQ(schedule.at(34), 2.5e-4);
}

TEST(LearningRateSchedule, EndPointsOfShortSchedules) {
  const LearningRateSchedule without_warmup{.lr = 1.0, .min_lr = 0.0, .warmup_steps = 0, .schedule_steps = 3};
  EXPECT_DOUBLE_EQ(without_warmup.at(0), 1.0);
  EXPECT_DOUBLE_EQ(without_warmup.at(1), 0.5);
  EXPECT_DOUBLE_EQ(without_warmup.at(2), 0.0);
  const LearningRateSchedule only_warmup{.lr = 1.0, .min_lr = 0.25, .warmup_steps = 4, .schedule_steps = 4};
  EXPECT_DOUBLE_EQ(only_warmup.at(0), 0.25);
  EXPECT_DOUBLE_EQ(only_warmup.at(3), 1.0);
  EXPECT_DOUBLE_EQ(only_warmup.at(4), 0.25);
  const LearningRateSchedule single{.lr = 1.0, .min_lr = 0.25, .warmup_steps = 0, .schedule_steps = 1};
  EXPECT_DOUBLE_EQ(single.at(0), 1.0);
  const LearningRateSchedule constant{.lr = 0.5, .min_lr = 0.5, .warmup_steps = 1, .schedule_steps = 9};
  for (int step = 0; step < 12; ++step) EXPECT_DOUBLE_EQ(constant.at(step), 0.5);
}

}  // namespace
}  // namespace annulus::optimizer
