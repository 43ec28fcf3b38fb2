// Kernels that only take their time.
#include <gmock/gmock.h>

#include <Kokkos_Core.hpp>
#include <algorithm>

#include "prediction/emulator/spin.hpp"
#include "support/error_text.hpp"
#include "support/exec.hpp"

namespace annulus::emulator {
namespace {

using testing::HasSubstr;

TEST(Spin, ReadsTheRatesOfBothPasses) {
  const Spin spin = parse_spin("600,530.5", "--spin");
  EXPECT_EQ(spin.forward, 600e12);
  EXPECT_EQ(spin.backward, 530.5e12);
  for (const char* wrong : {"", "600", "600;530", "600,530,1", "600,0", "-1,530", "fast,slow"}) {
    EXPECT_THAT(error_text([&] { parse_spin(wrong, "--spin"); }),
                HasSubstr("give the TFLOP/s of the forward and of the backward pass"))
        << wrong;
  }
}

// head_dim 64: 256 FLOP a pair forward and 640 backward.
TEST(Spin, TakesTheTimeOfTheRate) {
  const test::TestExec exec;
  const Queue queue(exec);
  const auto kernel = spinning_kernel({256e9, 320e9, 2}, plan::Problem());
  for (const plan::Pass pass : {plan::Pass::forward, plan::Pass::backward}) {
    const double expected = pass == plan::Pass::forward ? 0.05 : 0.1;
    double least = 1e9, least_enqueued = 1e9;  // a busy machine takes a while to wake a thread
    for (int attempt = 0; attempt < 5 && least > 1.1 * expected; ++attempt) {
      exec.fence("annulus::test: nothing runs");
      const Kokkos::Timer timer;
      kernel({pass, 50'000'000, 1, 1, 1, &queue});
      least_enqueued = std::min(least_enqueued, timer.seconds());
      exec.fence("annulus::test: the kernel is done");
      least = std::min(least, timer.seconds());
      EXPECT_GE(timer.seconds(), 0.99 * expected);
    }
    EXPECT_LT(least, 2 * expected);
    EXPECT_TRUE(test::on_host || least_enqueued < 0.5 * expected)
        << "the host waited for " << least_enqueued << " s";
  }
}

TEST(Spin, LeavesNoMoreMultiprocessorsThanThereAre) {
  EXPECT_THAT(error_text([] {
                spinning_kernel({1e12, 1e12, -1}, plan::Problem());
              }),
              HasSubstr("give 0 or more"));
  if (!test::on_host) {
    EXPECT_THAT(error_text([] {
                  spinning_kernel({1e12, 1e12, 100000}, plan::Problem());
                }),
                HasSubstr("leave fewer"));
  }
}

}  // namespace
}  // namespace annulus::emulator
