#include "plan/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include <annulus/base/error.hpp>
#include <annulus/base/units.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/simulate/simulate.hpp>

namespace annulus::planner {
namespace {

Row try_schedule(const std::string& name, const Case& c) {
  Row row{name, c.layout, {}, {}};
  try {
    plan::Problem problem = c.problem;
    if (c.layout == simulate::automatic) {
      const std::array passes = {c.pass};
      problem.layout = simulate::choose(problem, name, c.layout, passes, c.cluster,
                                        {.memory_limit = c.memory_limit, .selected = c.selected})
                           .layout;
      row.layout = problem.layout.to_string();
    }
    row.summary =
        summarize(simulate::simulate(plan::make_plan(name, problem, c.pass, "--schedule"), c.cluster,
                                     simulate::Detail::totals, plan::RankSubset::automatic, c.selected));
  } catch (const Error& error) {
    row.reason = error.what();
  }
  return row;
}

}  // namespace

std::vector<Row> compare(const Case& c) {
  std::vector<Row> rows;
  for (const std::string& name : simulate::candidate_schedules(c.problem))
    rows.push_back(try_schedule(name, c));
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    if (a.reason.empty() != b.reason.empty()) return a.reason.empty();
    return a.reason.empty() && a.summary.time < b.summary.time;
  });
  return rows;
}

std::string table(const std::vector<Row>& rows) {
  std::size_t width = 8, layout_width = 6;
  for (const Row& row : rows) {
    width = std::max(width, row.schedule.size());
    layout_width = std::max(layout_width, row.layout.size());
  }
  std::string text = fmt::format("{:{}}  {:{}}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}  {:>9}  {:>10}\n",
                                 "schedule", width, "layout", layout_width, "time ms", "exposed ms",
                                 "in nodes", "between", "imbalance", "of steps", "buffers");
  for (const Row& row : rows) {
    const Summary& s = row.summary;
    if (!row.reason.empty()) continue;
    fmt::format_to(std::back_inserter(text),
                   "{:{}}  {:{}}  {:>10.3f}  {:>10.3f}  {:>10}  {:>10}  {:>9.3f}  {:>9.3f}  {:>10}\n",
                   row.schedule, width, row.layout, layout_width, s.time * 1e3, s.exposed * 1e3,
                   bytes_text(s.intra_bytes), bytes_text(s.inter_bytes), s.imbalance.worker, s.imbalance.step,
                   bytes_text(s.buffer_bytes));
  }
  for (const Row& row : rows) {
    if (!row.reason.empty())
      fmt::format_to(std::back_inserter(text), "{:{}}  refuses: {}\n", row.schedule, width, row.reason);
  }
  return text;
}

std::string table(const simulate::Choice& choice) {
  constexpr std::size_t most_shown = 8;
  std::size_t possible = 0, width = 8, layout_width = 6;
  for (const simulate::Candidate& c : choice.candidates) {
    if (!c.reason.empty()) continue;
    if (++possible > most_shown) continue;
    width = std::max(width, c.schedule.size());
    layout_width = std::max(layout_width, c.layout.to_string().size());
  }
  std::string text =
      fmt::format("chosen: {} on layout {}, of {} possible candidates\n{:{}}  {:{}}  {:>11}  {:>12}\n",
                  choice.schedule, choice.layout.to_string(), possible, "schedule", width, "layout",
                  layout_width, "estimate ms", "simulated ms");
  for (std::size_t i = 0; i < std::min(possible, most_shown); ++i) {
    const simulate::Candidate& c = choice.candidates[i];
    fmt::format_to(std::back_inserter(text), "{:{}}  {:{}}  {:>11.3f}  {:>12}\n", c.schedule, width,
                   c.layout.to_string(), layout_width, c.estimate * 1e3,
                   c.seconds ? fmt::format("{:.3f}", *c.seconds * 1e3) : "-");
  }
  return text;
}

}  // namespace annulus::planner
