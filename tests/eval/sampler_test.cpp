#include "eval/sampler.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "support/error_text.hpp"

namespace annulus::eval {
namespace {

constexpr std::array logits{0.0f, 2.0f, 1.0f, 2.0f};

std::vector<std::int32_t> drawn(const SamplingOptions& options, int count) {
  Sampler sampler(options);
  std::vector<std::int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(sampler.choose(logits));
  return ids;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(drawn({}, 3), (std::vector{1, 1, 1}));
}

TEST(Sampler, DrawsByTheProbabilitiesOfTheLogits) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    constexpr int count = 20000;
    std::array<double, 4> expected{}, seen{};
    double sum = 0;
    for (std::size_t id = 0; id < 4; ++id) sum += expected[id] = std::exp(logits[id] / temperature);
    for (const std::int32_t id : drawn({.temperature = temperature}, count)) ++seen[std::size_t(id)];
    for (std::size_t id = 0; id < 4; ++id)
      EXPECT_NEAR(seen[id] / count, expected[id] / sum, 0.015) << temperature << " " << id;
  }
}

// The two likeliest ids have 0.40 each, the third 0.15.
TEST(Sampler, TopPLeavesTheUnlikelyOut) {
  for (const auto& [top_p, ids] :
       {std::pair{0.3, std::set{1}}, {0.7, {1, 3}}, {0.9, {1, 2, 3}}, {1.0, {0, 1, 2, 3}}}) {
    const auto all = drawn({.temperature = 1, .top_p = top_p}, 2000);
    EXPECT_EQ(std::set(all.begin(), all.end()), ids) << top_p;
  }
}

TEST(Sampler, SeedsTellDrawsApart) {
  const SamplingOptions one{.temperature = 1, .seed = 1}, two{.temperature = 1, .seed = 2};
  EXPECT_EQ(drawn(one, 50), drawn(one, 50));
  EXPECT_NE(drawn(one, 50), drawn(two, 50));
}

TEST(Sampler, NamesWhatIsWrong) {
  EXPECT_THAT(error_text([] { Sampler({.temperature = -1}); }), mentions("--temperature -1"));
  for (const double top_p : {0.0, 1.1, std::nan("")})
    EXPECT_THAT(error_text([&] { Sampler({.top_p = top_p}); }), mentions("--top-p"));
  const std::array bad{0.0f, std::numeric_limits<float>::infinity()};
  EXPECT_THAT(error_text([&] { Sampler({}).choose(bad); }), mentions("id 1", "inf"));
}

}  // namespace
}  // namespace annulus::eval
