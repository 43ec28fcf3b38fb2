#include <gtest/gtest.h>

#include <annulus/train/stop_signal.hpp>
#include <csignal>

namespace annulus::train {
namespace {

TEST(StopSignal, RemembersTheFirstSignalAndRestoresTheHandlers) {
  const auto before = std::signal(SIGUSR1, SIG_IGN);
  {
    const StopSignal stop;
    EXPECT_EQ(stop.received(), 0);
    std::raise(SIGUSR1);
    std::raise(SIGTERM);
    EXPECT_EQ(stop.received(), SIGUSR1);
    const StopSignal nested;  // another rank of this process
    EXPECT_EQ(nested.received(), SIGUSR1);
  }
  const StopSignal fresh;
  EXPECT_EQ(fresh.received(), 0);
  { const StopSignal nested; }
  std::raise(SIGTERM);  // still handled: one object is left
  EXPECT_EQ(fresh.received(), SIGTERM);
  EXPECT_EQ(std::signal(SIGUSR1, before) == SIG_IGN, false);
}

TEST(StopSignal, HandlersThatWereThereComeBack) {
  const auto before = std::signal(SIGUSR1, SIG_IGN);
  { const StopSignal stop; }
  EXPECT_EQ(std::signal(SIGUSR1, before), SIG_IGN);
}

TEST(StopSignal, ASecondInterruptEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const StopSignal stop;
        std::raise(SIGINT);
        if (stop.received() != SIGINT) std::_Exit(1);
        std::raise(SIGINT);
        std::_Exit(2);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignal, SignalsHaveNames) {
  EXPECT_STREQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_STREQ(signal_name(SIGUSR1), "SIGUSR1");
  EXPECT_STREQ(signal_name(SIGINT), "SIGINT");
}

}  // namespace
}  // namespace annulus::train
