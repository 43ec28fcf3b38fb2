#include <annulus/optim/clip.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/comm/loopback.hpp>

namespace annulus::optim {
namespace {

using Buffer = Array1<float, HostExec>;
constexpr double infinity = std::numeric_limits<double>::infinity();

Buffer random_gradients(std::int64_t size) {
  const Buffer gradients("gradients", size);
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < size; ++i) gradients(i) = normal(random);
  return gradients;
}

double norm_of(const Buffer& values) {
  long double sum = 0.0L;
  for (std::size_t i = 0; i < values.extent(0); ++i) sum += static_cast<long double>(values(i)) * values(i);
  return static_cast<double>(std::sqrt(sum));
}

TEST(GradientClipper, MeasuresTheNorm) {
  GradientClipper<HostExec> clipper(infinity);
  for (std::int64_t size : {0, 1, 3, 4095, 4096, 4097, 100003}) {
    const Buffer gradients = random_gradients(size);
    const Clipping clipping = clipper.measure(HostExec(), gradients);
    EXPECT_NEAR(clipping.norm, norm_of(gradients), 1e-13 * norm_of(gradients)) << size << " elements";
    EXPECT_EQ(clipping.scale, 1.0f);
    EXPECT_TRUE(clipping.finite());
  }
}

TEST(GradientClipper, ScalesDownToTheBoundAndNeverUp) {
  const Buffer gradients("gradients", 2);
  gradients(0) = 3.0f;
  gradients(1) = -4.0f;
  const auto scale = [&](double bound) {
    return GradientClipper<HostExec>(bound).measure(HostExec(), gradients).scale;
  };
  EXPECT_FLOAT_EQ(scale(1.0), 0.2f);
  EXPECT_FLOAT_EQ(scale(2.5), 0.5f);
  EXPECT_EQ(scale(5.0), 1.0f);
  EXPECT_EQ(scale(100.0), 1.0f);
  EXPECT_EQ(gradients(0), 3.0f) << "the gradients stay as they are";
}

TEST(GradientClipper, SquaresBeyondTheRangeOfFloatCount) {
  const Buffer gradients("gradients", 4);
  Kokkos::deep_copy(gradients, 1e30f);
  EXPECT_NEAR(GradientClipper<HostExec>(1.0).measure(HostExec(), gradients).norm, 2e30, 1e24);
  Kokkos::deep_copy(gradients, 1e-30f);
  EXPECT_NEAR(GradientClipper<HostExec>(1.0).measure(HostExec(), gradients).norm, 2e-30, 1e-36);
}

TEST(GradientClipper, ReportsANormThatIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Buffer gradients = random_gradients(9000);
    gradients(8500) = bad;
    const Clipping clipping = GradientClipper<HostExec>(1.0).measure(HostExec(), gradients);
    EXPECT_FALSE(clipping.finite());
    EXPECT_EQ(clipping.scale, 0.0f);
  }
}

TEST(GradientClipper, TheBoundMustBePositive) {
  EXPECT_THROW(GradientClipper<HostExec>(0.0), Error);
  EXPECT_THROW(GradientClipper<HostExec>(-1.0), Error);
  EXPECT_THROW(GradientClipper<HostExec>(std::numeric_limits<double>::quiet_NaN()), Error);
}

#if defined(KOKKOS_ENABLE_OPENMP) && defined(KOKKOS_ENABLE_SERIAL)
TEST(GradientClipper, DoesNotDependOnTheNumberOfThreads) {
  const Buffer gradients = random_gradients(1000003);
  const double many = GradientClipper<HostExec>(1.0).measure(HostExec(), gradients).norm;
  EXPECT_EQ(GradientClipper<HostExec>(1.0).measure(Kokkos::OpenMP(1), gradients).norm, many);
  EXPECT_EQ(GradientClipper<Kokkos::Serial>(1.0).measure(Kokkos::Serial(), gradients).norm, many);
}
#endif

TEST(GradientClipper, NormOfShardsOnAllRanks) {
  const Buffer gradients = random_gradients(10000);
  const double expected = norm_of(gradients);
  const std::vector<std::pair<int, int>> shards{{0, 1}, {1, 6000}, {6000, 6000}, {6000, 10000}};
  std::vector<double> norms(shards.size());
  comm::run_loopback(Topology::uniform(4, 2), [&](comm::Communicator& communicator) {
    const Buffer shard = Kokkos::subview(gradients, shards[static_cast<std::size_t>(communicator.rank())]);
    GradientClipper<HostExec> clipper(expected / 2);
    const Clipping clipping = clipper.measure(HostExec(), shard, &communicator);
    norms[static_cast<std::size_t>(communicator.rank())] = clipping.norm;
    EXPECT_FLOAT_EQ(clipping.scale, 0.5f);
  });
  EXPECT_NEAR(norms[0], expected, 1e-13 * expected);
  for (double norm : norms) EXPECT_EQ(norm, norms[0]);
}

TEST(GradientClipper, ItsMemoryCountsAsWorkspaceAndIsKept) {
  const auto bytes = [] { return memory_use().current[static_cast<int>(MemoryCategory::workspace)]; };
  const std::int64_t before = bytes();
  {
    GradientClipper<HostExec> clipper(1.0);
    clipper.measure(HostExec(), random_gradients(40960));
    const std::int64_t held = bytes() - before;
    EXPECT_EQ(held, 11 * 8);
    clipper.measure(HostExec(), random_gradients(100));
    EXPECT_EQ(bytes() - before, held);
  }
  EXPECT_EQ(bytes(), before);
}

}  // namespace
}  // namespace annulus::optim
