#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "prediction/measurement/fit.hpp"
#include "support/error_text.hpp"

namespace annulus::measurement {
namespace {

using ::testing::HasSubstr;

/// 1 KB to 256 MB by a factor of 4, as they would take without noise.
std::vector<Timing> ideal(double latency, double bandwidth) {
  std::vector<Timing> timings;
  for (double bytes = 1024; bytes <= 256 * 1024 * 1024; bytes *= 4)
    timings.push_back({bytes, latency + bytes / bandwidth});
  return timings;
}

/// Each takes up to `most` times as long.
std::vector<Timing> noisy(std::vector<Timing> timings, double most, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> factor(1.0, most);
  for (Timing& t : timings) t.seconds *= factor(generator);
  return timings;
}

TEST(Fit, FindsTheLinkWithoutNoise) {
  for (const double latency : {0.0, 1e-6, 3e-3}) {
    const LinkFit fit = fit_link(ideal(latency, 12.5e9));
    EXPECT_NEAR(fit.link.bandwidth, 12.5e9, 12.5e9 * 1e-9);
    EXPECT_NEAR(fit.link.latency, latency, 1e-12);
    EXPECT_LT(fit.largest_error, 1e-6);
  }
}

TEST(Fit, NoiseMovesItLittle) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const LinkFit fit = fit_link(noisy(ideal(20e-6, 10e9), 1.2, seed));
    EXPECT_NEAR(fit.link.bandwidth, 10e9 / 1.1, 1.2e9) << seed;
    EXPECT_NEAR(fit.link.latency, 22e-6, 4e-6) << seed;
    EXPECT_LT(fit.median_error, 0.1) << seed;
  }
}

TEST(Fit, OutliersDoNotCount) {
  const auto clean = ideal(20e-6, 10e9);
  for (std::size_t i = 0; i < clean.size(); ++i) {
    for (std::size_t j = i + 1; j < clean.size(); ++j) {
      auto timings = clean;
      timings[i].seconds *= 7;
      timings[j].seconds /= 20;
      const LinkFit fit = fit_link(timings);
      EXPECT_NEAR(fit.link.bandwidth, 10e9, 1) << i << " " << j;
      EXPECT_NEAR(fit.link.latency, 20e-6, 1e-9) << i << " " << j;
      EXPECT_LT(fit.median_error, 1e-6);
      EXPECT_NEAR(fit.largest_error, 20 - 1, 1e-6);
    }
  }
}

TEST(Fit, NoOtherLineIsMuchBetter) {
  const auto timings = noisy(ideal(5e-6, 3e9), 3.0, 4);
  const auto sum = [&](double latency, double bandwidth) {
    double total = 0;
    for (const Timing& t : timings) total += std::abs(std::log((latency + t.bytes / bandwidth) / t.seconds));
    return total;
  };
  const simulator::Link best = fit_link(timings).link;
  const double least = sum(best.latency, best.bandwidth);
  for (double a = 0.5; a < 2; a *= 1.01) {
    for (double b = 0.5; b < 2; b *= 1.01)
      EXPECT_GE(sum(best.latency * a, best.bandwidth * b), 0.95 * least) << a << " " << b;
  }
}

TEST(Fit, AlwaysGivesALink) {
  const LinkFit single = fit_link(std::vector<Timing>{{1e6, 1e-3}});
  EXPECT_NEAR(single.link.bandwidth, 1e9, 1);
  EXPECT_EQ(single.link.latency, 0);
  // Longer messages that are faster: no line fits, but a link it is.
  const LinkFit falling = fit_link(std::vector<Timing>{{1e3, 3e-6}, {4e3, 2e-6}, {16e3, 1e-6}});
  EXPECT_GT(falling.link.bandwidth, 0);
  EXPECT_TRUE(std::isfinite(falling.link.bandwidth));
  EXPECT_GE(falling.link.latency, 0);
  const std::vector<Timing> none, negative = {{1e3, -1}};
  EXPECT_THAT(error_text([&] { fit_link(none); }), HasSubstr("without any time"));
  EXPECT_THAT(error_text([&] { fit_link(negative); }), HasSubstr("both must be positive"));
}

/// Times of 8 ranks that share `nics` NICs of 25 GB/s.
std::vector<Timing> shared(int ranks, int nics) {
  return ideal(10e-6, 25e9 * nics / ranks);
}

TEST(Rails, AreThoseThatCarryTheSum) {
  const auto one = ideal(10e-6, 25e9);
  EXPECT_EQ(count_nics(8, one, shared(8, 8)), 0);
  EXPECT_EQ(count_nics(8, one, shared(8, 4)), 4);
  EXPECT_EQ(count_nics(8, one, shared(8, 2)), 2);
  EXPECT_EQ(count_nics(8, one, shared(8, 1)), 1);
  EXPECT_EQ(count_nics(6, one, shared(6, 3)), 3);
  EXPECT_EQ(count_nics(1, one, one), 0);
}

TEST(Rails, AreADivisorOfTheRanks) {
  const auto one = ideal(10e-6, 25e9);
  EXPECT_EQ(count_nics(8, one, shared(8, 3)), 4);  // 4/3 < 3/2
  EXPECT_EQ(count_nics(6, one, shared(6, 4)), 3);
  EXPECT_EQ(count_nics(7, one, shared(7, 2)), 1);
  EXPECT_EQ(count_nics(4, one, ideal(10e-6, 1e9)), 1);  // worse than one after the other
  EXPECT_EQ(count_nics(4, one, one), 0);
  EXPECT_EQ(count_nics(4, one, ideal(10e-6, 50e9)), 0);  // noise
}

TEST(Rails, NoiseAndOutliersDoNotCount) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto one = noisy(ideal(10e-6, 25e9), 1.3, seed), all = noisy(shared(8, 2), 1.3, seed + 100);
    one[9].seconds *= 10;
    all[6].seconds *= 10;
    EXPECT_EQ(count_nics(8, one, all), 2) << seed;
  }
}

TEST(Rails, SmallMessagesSayNothing) {
  // Where latency decides, ranks do not disturb one another.
  auto one = ideal(1e-3, 25e9), all = ideal(1e-3, 25e9 / 4);
  EXPECT_EQ(count_nics(4, one, all), 1);
}

TEST(Rails, NeedTheSameSizes) {
  const auto one = ideal(1e-6, 1e9);
  auto other = one;
  other.pop_back();
  EXPECT_THAT(error_text([&] { count_nics(2, one, other); }), HasSubstr("the same sizes"));
  other = one;
  other[3].bytes += 1;
  EXPECT_THAT(error_text([&] { count_nics(2, one, other); }), HasSubstr("differ"));
}

}  // namespace
}  // namespace annulus::measurement
