#include <annulus/optim/clip.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/comm/loopback.hpp>

#include "support/exec.hpp"

namespace annulus::optim {
namespace {

using Gradients = Array1<float, test::TestExec>;
constexpr double infinity = std::numeric_limits<double>::infinity();

Gradients on_device(const std::vector<float>& values) {
  const Gradients buffer("gradients", values.size());
  const auto host = Kokkos::create_mirror_view(buffer);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(buffer, host);
  return buffer;
}

std::vector<float> random_numbers(std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  return values;
}

Gradients random_gradients(std::int64_t size) {
  return on_device(random_numbers(size));
}

double norm_of(const Gradients& buffer) {
  const auto values = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), buffer);
  long double sum = 0.0L;
  for (std::size_t i = 0; i < values.extent(0); ++i) sum += static_cast<long double>(values(i)) * values(i);
  return static_cast<double>(std::sqrt(sum));
}

TEST(GradientClipper, MeasuresTheNorm) {
  GradientClipper<test::TestExec> clipper(infinity);
  for (std::int64_t size : {0, 1, 3, 4095, 16383, 16384, 16385, 100003}) {
    const Gradients gradients = random_gradients(size);
    const Clipping clipping = clipper.measure(test::TestExec(), gradients);
    EXPECT_NEAR(clipping.norm, norm_of(gradients), 1e-13 * norm_of(gradients)) << size << " elements";
    EXPECT_EQ(clipping.scale, 1.0f);
    EXPECT_TRUE(clipping.finite());
  }
}

TEST(GradientClipper, ScalesDownToTheBoundAndNeverUp) {
  const Gradients gradients = on_device({3.0f, -4.0f});
  const auto scale = [&](double bound) {
    return GradientClipper<test::TestExec>(bound).measure(test::TestExec(), gradients).scale;
  };
  EXPECT_FLOAT_EQ(scale(1.0), 0.2f);
  EXPECT_FLOAT_EQ(scale(2.5), 0.5f);
  EXPECT_EQ(scale(5.0), 1.0f);
  EXPECT_EQ(scale(100.0), 1.0f);
  EXPECT_EQ(norm_of(gradients), 5.0) << "the gradients stay as they are";
}

TEST(GradientClipper, SquaresBeyondTheRangeOfFloatCount) {
  const Gradients gradients("gradients", 4);
  Kokkos::deep_copy(gradients, 1e30f);
  EXPECT_NEAR(GradientClipper<test::TestExec>(1.0).measure(test::TestExec(), gradients).norm, 2e30, 1e24);
  Kokkos::deep_copy(gradients, 1e-30f);
  EXPECT_NEAR(GradientClipper<test::TestExec>(1.0).measure(test::TestExec(), gradients).norm, 2e-30, 1e-36);
}

TEST(GradientClipper, ReportsANormThatIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = random_numbers(9000);
    values[8500] = bad;
    const Gradients gradients = on_device(values);
    const Clipping clipping = GradientClipper<test::TestExec>(1.0).measure(test::TestExec(), gradients);
    EXPECT_FALSE(clipping.finite());
    EXPECT_EQ(clipping.scale, 0.0f);
  }
}

TEST(GradientClipper, TheBoundMustBePositive) {
  EXPECT_THROW(GradientClipper<test::TestExec>(0.0), Error);
  EXPECT_THROW(GradientClipper<test::TestExec>(-1.0), Error);
  EXPECT_THROW(GradientClipper<test::TestExec>(std::numeric_limits<double>::quiet_NaN()), Error);
}

#if defined(KOKKOS_ENABLE_OPENMP) && defined(KOKKOS_ENABLE_SERIAL) && !defined(ANNULUS_TEST_ON_DEVICE)
TEST(GradientClipper, DoesNotDependOnTheNumberOfThreads) {
  const Gradients gradients = random_gradients(1000003);
  const double many = GradientClipper<test::TestExec>(1.0).measure(test::TestExec(), gradients).norm;
  EXPECT_EQ(GradientClipper<test::TestExec>(1.0).measure(Kokkos::OpenMP(1), gradients).norm, many);
  EXPECT_EQ(GradientClipper<Kokkos::Serial>(1.0).measure(Kokkos::Serial(), gradients).norm, many);
}
#endif

TEST(GradientClipper, TheSumIsTheSameBitsEveryTime) {
  const Gradients gradients = random_gradients(300007);
  GradientClipper<test::TestExec> clipper(1.0);
  const double norm = clipper.measure(test::TestExec(), gradients).norm;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(clipper.measure(test::TestExec(), gradients).norm, norm);
  const Gradients from_second =
      Kokkos::subview(gradients, std::pair(1, 300007));  // not a multiple of 16 bytes
  EXPECT_NEAR(clipper.measure(test::TestExec(), from_second).norm, norm_of(from_second), 1e-12 * norm);
}

// Two units of which each rank holds a part: the bits of the norm are those of the whole buffer on one rank.
TEST(GradientClipper, ShardsGiveTheBitsOfTheWhole) {
  constexpr std::int64_t block = NormBlocks<test::TestExec>::size;
  const std::int64_t first = 3 * block + 17, second = 5 * block + 3, total = first + second;
  const Gradients gradients = random_gradients(total);
  const test::TestExec exec;
  const NormBlocks<test::TestExec> blocks(exec,
                                          std::array{NormRange{0, first, 0}, NormRange{first, total, 4}}, 10);
  GradientClipper<test::TestExec> one(1.0);
  const Clipping whole = one.measure(exec, gradients, blocks);
  EXPECT_NEAR(whole.norm, norm_of(gradients), 1e-13 * whole.norm);

  // Rank 2 has the end of the second unit alone, and rank 1 parts that start where no pack does.
  std::vector<Clipping> found(3);
  comm::run_loopback(Topology::uniform(3, 2), [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    const std::int64_t parts[3][4] = {{0, 2 * block, first, first + 2 * block},
                                      {2 * block, first, first + 2 * block, first + 4 * block},
                                      {first, first, first + 4 * block, total}};
    const auto& [a, b, c, d] = parts[rank];
    const test::TestExec own = test::rank_instance();
    const Gradients shard("shard", static_cast<std::size_t>(b - a + d - c));
    Kokkos::deep_copy(own, Kokkos::subview(shard, std::pair(std::int64_t{0}, b - a)),
                      Kokkos::subview(gradients, std::pair(a, b)));
    Kokkos::deep_copy(own, Kokkos::subview(shard, std::pair(b - a, b - a + d - c)),
                      Kokkos::subview(gradients, std::pair(c, d)));
    const NormBlocks<test::TestExec> mine(
        own,
        std::array{NormRange{0, b - a, a / block}, NormRange{b - a, b - a + d - c, 4 + (c - first) / block}},
        10);
    GradientClipper<test::TestExec> clipper(1.0);
    found[static_cast<std::size_t>(rank)] = clipper.measure(own, shard, mine, &communicator);
  });
  for (const Clipping& clipping : found) {
    EXPECT_EQ(clipping.norm, whole.norm);
    EXPECT_EQ(clipping.scale, whole.scale);
  }
}

TEST(GradientClipper, BlocksMustFitNumbersAndBuffer) {
  const test::TestExec exec;
  EXPECT_THROW(NormBlocks<test::TestExec>(exec, std::array{NormRange{0, 40000, 0}}, 2), Error);
  const NormBlocks<test::TestExec> blocks(exec, 100);
  EXPECT_THROW(GradientClipper<test::TestExec>(1.0).measure(exec, random_gradients(99), blocks), Error);
}

TEST(GradientClipper, ItsMemoryCountsAsWorkspaceAndIsKept) {
  const auto bytes = [] {
    return memory_use(Owned<Array1<float, test::TestExec>>::kind)
        .current[static_cast<int>(MemoryCategory::workspace)];
  };
  const std::int64_t before = bytes();
  {
    GradientClipper<test::TestExec> clipper(1.0);
    clipper.measure(test::TestExec(), random_gradients(40960));
    const std::int64_t held = bytes() - before;
    EXPECT_EQ(held, 4 * 8 + 3 * 24);
    clipper.measure(test::TestExec(), random_gradients(40960));
    EXPECT_EQ(bytes() - before, held);
  }
  EXPECT_EQ(bytes(), before);
}

}  // namespace
}  // namespace annulus::optim
