#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <chrono>
#include <thread>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>

#include "prediction/measurement/kernels.hpp"
#include "support/error_text.hpp"

namespace annulus::measurement {
namespace {

using plan::Pass;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BlockOptions small_kernels() {
  BlockOptions options;
  options.head_dims = {16};
  options.dtypes = {DType::f32, DType::bf16, DType::f16};
  options.rows = {40, 20};
  options.heads = 4;
  options.kv_heads = 2;
  options.sampling = {.repetitions = 2, .seconds = 5};
  return options;
}

TEST(Kernels, PastTheDeadlineEachRunsOnce) {
  BlockOptions options = small_kernels();
  options.sampling.deadline = std::chrono::steady_clock::now();
  const KernelMeasurement measurement = measure_kernels(*comm::make_null(), options);
  EXPECT_EQ(measurement.points.size(), 3u * 2 * 2 * 2);
  for (const KernelPoint& p : measurement.points) {
    EXPECT_EQ(p.seconds.repetitions, 1);
    EXPECT_EQ(p.seconds.iterations, 1);
    EXPECT_GT(p.seconds.median, 0);
  }
}

TEST(Kernels, EveryShapeIsMeasuredAndCountsUnmaskedPairs) {
  const KernelMeasurement measurement = measure_kernels(*comm::make_null(), small_kernels());
  EXPECT_THAT(measurement.notes, IsEmpty());
  ASSERT_EQ(measurement.points.size(), 3u * 2 * 2 * 2);
  int causal = 0;
  for (const KernelPoint& p : measurement.points) {
    const auto rows = static_cast<double>(p.rows);
    const double pairs = p.mask == BlockMask::full ? rows * rows : rows * (rows + 1) / 2;
    EXPECT_EQ(p.flops, (p.pass == Pass::forward ? 4 : 10) * p.head_dim * 4 * pairs);
    EXPECT_GT(p.seconds.min, 0);
    EXPECT_DOUBLE_EQ(p.rate(), p.flops / p.seconds.median);
    causal += p.mask == BlockMask::causal ? 1 : 0;
  }
  EXPECT_EQ(causal, 12);
  const KernelPoint& first = measurement.points.front();
  EXPECT_EQ(first.rows, 20) << "sizes rise";
  EXPECT_EQ(first.pass, Pass::forward);
  EXPECT_EQ(first.mask, BlockMask::full);
}

TEST(Kernels, LargeBlocksAreLeftOutWhenTimeIsShort) {
  BlockOptions options = small_kernels();
  options.dtypes = {DType::f32};
  options.sampling.seconds = 1e-9;
  const KernelMeasurement measurement = measure_kernels(*comm::make_null(), options);
  EXPECT_EQ(measurement.points.size(), 4u);
  ASSERT_EQ(measurement.notes.size(), 2u);
  EXPECT_THAT(measurement.notes[1],
              HasSubstr("f32 causal blocks of 40 rows and more, head_dim 16, take longer"));
}

TEST(Kernels, AllRanksGetTheSame) {
  BlockOptions options = small_kernels();
  options.dtypes = {DType::f32};
  options.masks = {BlockMask::causal};
  std::vector<std::vector<double>> seconds(2);
  comm::run_loopback(Topology({2}), [&](comm::Communicator& communicator) {
    for (const KernelPoint& p : measure_kernels(communicator, options).points)
      seconds[communicator.rank()].push_back(p.seconds.median);
  });
  EXPECT_EQ(seconds[0].size(), 4u);
  EXPECT_EQ(seconds[0], seconds[1]);
}

TEST(Kernels, WorkComesFirstUntilTheClockHasSettled) {
  for (const double settling : {0.0, 0.02}) {
    int calls = 0;
    double slept = 0;
    const Sample sample =
        measurement::sample(*comm::make_null(), {.repetitions = 2, .settling = settling}, [&](int count) {
          calls += count;
          const Kokkos::Timer timer;
          std::this_thread::sleep_for(std::chrono::milliseconds(3 * count));
          slept += timer.seconds();
        });
    const int counted = sample.repetitions * sample.iterations;
    if (settling == 0) {
      EXPECT_EQ(calls, counted + 2);
    } else {
      EXPECT_GT(calls, counted + 2);
      EXPECT_GT(slept, settling);
    }
  }
}

TEST(Kernels, BadOptionsAreNamed) {
  const auto error = [](auto change) {
    BlockOptions options;
    change(options);
    return error_text([&] { options.check(); });
  };
  EXPECT_THAT(error([](BlockOptions& o) { o.head_dims = {20}; }), HasSubstr("--head-dim"));
  EXPECT_THAT(error([](BlockOptions& o) { o.head_dims.clear(); }),
              HasSubstr("--head-dim: give at least one"));
  EXPECT_THAT(error([](BlockOptions& o) { o.dtypes = {DType::f64}; }), HasSubstr("--dtype f64"));
  EXPECT_THAT(error([](BlockOptions& o) { o.rows = {0}; }), HasSubstr("--rows 0"));
  EXPECT_THAT(error([](BlockOptions& o) { o.kv_heads = 3; }), HasSubstr("--kv-heads 3"));
  EXPECT_THAT(error([](BlockOptions& o) { o.heads = 0; }), HasSubstr("--heads is 0"));
  EXPECT_THAT(error([](BlockOptions& o) { o.sampling.repetitions = 0; }), HasSubstr("--repetitions is 0"));
  EXPECT_THAT(error_text([] { parse_block_mask("half", "--mask"); }),
              HasSubstr("--mask 'half': blocks are full or causal"));
}

}  // namespace
}  // namespace annulus::measurement
