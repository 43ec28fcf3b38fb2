#include <annulus/plan/schedules.hpp>

#include <fmt/ranges.h>

#include <array>

#include <annulus/base/error.hpp>

namespace annulus::plan {
namespace {

struct Schedule {
  std::string_view name;
  Plan (*make)(const Problem&, Pass);
};
constexpr std::array<Schedule, 2> schedules = {{{"ring", make_ring}, {"burst", make_burst}}};

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules) names.emplace_back(schedule.name);
  return names;
}

Plan make_plan(std::string_view name, const Problem& problem, Pass pass, std::string_view field) {
  for (const Schedule& schedule : schedules) {
    if (schedule.name == name) return schedule.make(problem, pass);
  }
  fail("{}: there is no schedule '{}'; known are {}", field, name, fmt::join(schedule_names(), ", "));
}

}  // namespace annulus::plan
