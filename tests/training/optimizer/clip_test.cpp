#include <gtest/gtest.h>

#include <limits>
#include <random>

#include <annulus/base/division.hpp>

#include "support/arrays.hpp"
#include "training/optimizer/clip.hpp"

namespace annulus::optimizer {
namespace {

using test::TestExec;
using Gradients = Array1<float, TestExec>;
constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<float> random_numbers(std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  return values;
}

Gradients random_gradients(std::int64_t size) {
  return test::uploaded(random_numbers(size));
}

double norm_of(const Gradients& buffer) {
  long double sum = 0.0L;
  for (const long double value : test::floats_of(buffer)) sum += value * value;
  return static_cast<double>(std::sqrt(sum));
}

template <class Exec = TestExec>
NormBlocks<Exec> whole(std::int64_t elements, const Exec& exec = {}) {
  return {exec, std::array{NormRange{0, elements, 0}}, ceil_divide(elements, NormBlocks<Exec>::size)};
}

/// Norm of a whole buffer.
template <class Exec = TestExec>
Clipping clipping(const Gradients& gradients, double bound, const Exec& exec = {}) {
  const auto blocks = whole(static_cast<std::int64_t>(gradients.extent(0)), exec);
  return GradientClipper<Exec>(bound).measure(exec, gradients, blocks);
}

TEST(GradientClipper, MeasuresTheNorm) {
  for (std::int64_t size : {0, 1, 3, 4095, 16383, 16384, 16385, 100003}) {
    const Gradients gradients = random_gradients(size);
    const Clipping found = clipping(gradients, infinity);
    EXPECT_NEAR(found.norm, norm_of(gradients), 1e-13 * norm_of(gradients)) << size << " elements";
    EXPECT_EQ(found.scale, 1.0f);
    EXPECT_TRUE(found.finite());
  }
}

TEST(GradientClipper, ScalesDownToTheBoundAndNeverUp) {
  const Gradients gradients = test::uploaded(std::vector{3.0f, -4.0f});
  const auto scale = [&](double bound) { return clipping(gradients, bound).scale; };
  EXPECT_FLOAT_EQ(scale(1.0), 0.2f);
  EXPECT_FLOAT_EQ(scale(2.5), 0.5f);
  EXPECT_EQ(scale(5.0), 1.0f);
  EXPECT_EQ(scale(100.0), 1.0f);
  EXPECT_EQ(norm_of(gradients), 5.0) << "the gradients stay as they are";
}

TEST(GradientClipper, SquaresBeyondTheRangeOfFloatCount) {
  const Gradients gradients("gradients", 4);
  Kokkos::deep_copy(gradients, 1e30f);
  EXPECT_NEAR(clipping(gradients, 1.0).norm, 2e30, 1e24);
  Kokkos::deep_copy(gradients, 1e-30f);
  EXPECT_NEAR(clipping(gradients, 1.0).norm, 2e-30, 1e-36);
}

TEST(GradientClipper, ReportsANormThatIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = random_numbers(9000);
    values[8500] = bad;
    const Gradients gradients = test::uploaded(values);
    const Clipping found = clipping(gradients, 1.0);
    EXPECT_FALSE(found.finite());
    EXPECT_EQ(found.scale, 0.0f);
  }
}

TEST(GradientClipper, TheBoundMustBePositive) {
  EXPECT_THROW(GradientClipper<TestExec>(0.0), Error);
  EXPECT_THROW(GradientClipper<TestExec>(-1.0), Error);
  EXPECT_THROW(GradientClipper<TestExec>(std::numeric_limits<double>::quiet_NaN()), Error);
}

#if defined(KOKKOS_ENABLE_OPENMP) && !defined(ANNULUS_TEST_ON_DEVICE)
TEST(GradientClipper, DoesNotDependOnTheNumberOfThreads) {
  const Gradients gradients = random_gradients(1000003);
  const double many = clipping(gradients, 1.0).norm;
  EXPECT_EQ(clipping(gradients, 1.0, Kokkos::OpenMP(1)).norm, many);
}
#endif

TEST(GradientClipper, TheSumIsTheSameBitsEveryTime) {
  const Gradients gradients = random_gradients(300007);
  GradientClipper<TestExec> clipper(1.0);
  const auto blocks = whole(300007);
  const double norm = clipper.measure(TestExec(), gradients, blocks).norm;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(clipper.measure(TestExec(), gradients, blocks).norm, norm);
  const Gradients from_second =
      Kokkos::subview(gradients, std::pair(1, 300007));  // not a multiple of 16 bytes
  EXPECT_NEAR(clipping(from_second, 1.0).norm, norm_of(from_second), 1e-12 * norm);
}

TEST(GradientClipper, BlocksMustFitNumbersAndBuffer) {
  const TestExec exec;
  EXPECT_THROW(NormBlocks<TestExec>(exec, std::array{NormRange{0, 40000, 0}}, 2), Error);
  EXPECT_THROW(GradientClipper<TestExec>(1.0).measure(exec, random_gradients(99), whole(100)), Error);
}

TEST(GradientClipper, ItsMemoryCountsAsWorkspaceAndIsKept) {
  const auto bytes = [] {
    return memory_use(Owned<Array1<float, TestExec>>::kind)
        .current[static_cast<int>(MemoryCategory::workspace)];
  };
  const std::int64_t before = bytes();
  {
    GradientClipper<TestExec> clipper(1.0);
    const auto blocks = whole(40960);
    clipper.measure(TestExec(), random_gradients(40960), blocks);
    const std::int64_t held = bytes() - before;
    EXPECT_EQ(held, 4 * 8 + 3 * 24);
    clipper.measure(TestExec(), random_gradients(40960), blocks);
    EXPECT_EQ(bytes() - before, held);
  }
  EXPECT_EQ(bytes(), before);
}

}  // namespace
}  // namespace annulus::optimizer
