// An error that refuses a problem names what would serve it, and that is true: the test does what the error
// says.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/error_text.hpp"

namespace annulus::plan {
namespace {

/// A way out that an error names: a change of the problem, or another schedule.
struct WayOut {
  std::string schedule;
  Problem problem;
};

/// Every way out in what an error says behind its last "use": "layout X", "mask X", "schedule X", "schedule X
/// or Y".
std::vector<WayOut> ways_out(const std::string& error, const std::string& schedule, const Problem& problem) {
  std::vector<WayOut> ways;
  const std::string text = error.substr(std::min(error.rfind("use "), error.size()));
  const std::regex layout("layout (\\S+?),"), names("schedule (\\S+?)( or (\\S+))?$");
  std::smatch found;
  if (std::regex_search(text, found, layout)) {
    ways.push_back({schedule, problem});
    ways.back().problem.layout = Layout::parse(found[1].str());
  }
  if (std::regex_search(text, found, names)) {
    ways.push_back({found[1].str(), problem});
    if (found[3].matched) ways.push_back({found[3].str(), problem});
  }
  return ways;
}

/// Schedules with arguments that may or may not fit the ranks.
std::string random_schedule(std::mt19937& random) {
  const auto upto = [&](int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); };
  switch (random() % 8) {
    case 0:
      return "topology-burst";
    case 1:
      return "hierarchical";
    case 2:
      return "double-ring";
    case 3:
      return fmt::format("double-ring:{}", upto(8));
    case 4:
      return "helper-worker";
    case 5:
      return "ulysses";
    default:
      return fmt::format("hybrid:{}x{}{}", upto(6), upto(6), random() % 2 == 0 ? "" : ":context-first");
  }
}

Problem random_problem(std::mt19937& random) {
  const auto one_of = [&](const auto& list) { return list[random() % list.size()]; };
  const int ranks = 1 + static_cast<int>(random() % 12);
  const int nodes = 1 + static_cast<int>(random() % static_cast<unsigned>(std::min(8, ranks)));
  const auto [heads, kv_heads] =
      one_of(std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {4, 2}, {7, 7}, {12, 3}, {32, 8}});
  Problem problem =
      test::make_problem(ranks, 97, one_of(test::all_layouts), one_of(test::masks_of(97)), heads, kv_heads);
  problem.topology = annulus::test::balanced(ranks, nodes);
  return problem;
}

TEST(Suggestions, AreServed) {
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 800; ++i) {
    const std::string schedule = random_schedule(random);
    const Problem problem = random_problem(random);
    const std::string error = error_text([&] { make_plan(schedule, problem, Pass::backward); });
    if (error == "no error") continue;
    ++refused;
    SCOPED_TRACE(testing::Message() << problem.topology.to_string() << ": " << error);
    EXPECT_THAT(error, testing::HasSubstr(schedule));  // says which
    const std::vector<WayOut> ways = ways_out(error, schedule, problem);
    EXPECT_FALSE(ways.empty() || ways.back().schedule == schedule) << "names no schedule";
    for (const WayOut& way : ways) {
      for (const Pass pass : test::passes) {
        EXPECT_EQ(error_text([&] { test::check_plan(make_plan(way.schedule, way.problem, pass)); }),
                  "no error")
            << way.schedule << ", " << way.problem.layout.to_string() << ", " << way.problem.mask.to_string();
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace annulus::plan
