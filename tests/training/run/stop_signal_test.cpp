#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "support/temporary_folder.hpp"
#include "training/run/stop_signal.hpp"

namespace annulus::training {
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

TEST(StopSignal, ASecondTerminationEndsTheProcessUnlessItIsTheSameRequest) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const StopSignal stop;
        std::raise(SIGUSR1);  // batch systems send this one first
        std::raise(SIGTERM);
        std::raise(SIGTERM);
        if (stop.received() != SIGUSR1) std::_Exit(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(2200));
        std::raise(SIGTERM);
        std::_Exit(2);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignal, RemembersATerminalThatIsGoneAndALimitOfProcessorTime) {
  for (const int signal : {SIGHUP, SIGXCPU}) {
    const auto before = std::signal(signal, SIG_DFL);
    {
      const StopSignal stop;
      std::raise(signal);
      std::raise(signal);
      EXPECT_EQ(stop.received(), signal);
    }
    EXPECT_EQ(std::signal(signal, before), SIG_DFL);
  }
}

TEST(StopSignal, WhatIsIgnoredStaysIgnored) {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGXCPU}) {
    const auto before = std::signal(signal, SIG_IGN);
    {
      const StopSignal stop;
      std::raise(signal);
      EXPECT_EQ(stop.received(), 0);
    }
    EXPECT_EQ(std::signal(signal, before), SIG_IGN);
  }
}

TEST(StopSignal, SignalsHaveNamesAndCauses) {
  for (const auto& [signal, name] :
       {std::pair(SIGTERM, "SIGTERM"), std::pair(SIGUSR1, "SIGUSR1"), std::pair(SIGINT, "SIGINT"),
        std::pair(SIGHUP, "SIGHUP"), std::pair(SIGXCPU, "SIGXCPU")})
    EXPECT_EQ(stop_cause(signal), name);
  const annulus::test::TemporaryFolder folder;
  ::setenv("ANNULUS_STOP_CAUSE", folder.file("cause").c_str(), 1);
  EXPECT_EQ(stop_cause(SIGUSR1), "SIGUSR1");  // it has not been told, or on another machine
  folder.write("cause", "SIGTERM\n");
  EXPECT_EQ(stop_cause(SIGUSR1), "SIGTERM");
  EXPECT_EQ(stop_cause(SIGINT), "SIGINT");
  folder.write("cause", "\033[31mwhatever");
  EXPECT_EQ(stop_cause(SIGUSR1), "SIGUSR1");
  ::unsetenv("ANNULUS_STOP_CAUSE");
}

}  // namespace
}  // namespace annulus::training
