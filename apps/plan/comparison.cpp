#include "plan/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include <annulus/base/error.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/simulate/simulate.hpp>

#include "common/text.hpp"

namespace annulus::planner {
namespace {

using app::bytes_text;

/// Names with arguments filled in. A grid that does not exist stays as it is, and is refused with the reason.
std::vector<std::string> candidates(int ranks) {
  constexpr std::string_view grid = ":HxC";
  std::vector<std::string> names;
  for (const std::string& name : plan::schedule_names()) {
    if (!name.ends_with(grid)) {
      names.push_back(name);
      continue;
    }
    const std::string base = name.substr(0, name.size() - grid.size());
    for (int heads = 2; heads < ranks; ++heads) {
      if (ranks % heads == 0) names.push_back(fmt::format("{}:{}x{}", base, heads, ranks / heads));
    }
  }
  return names;
}

Row try_schedule(const std::string& name, const Case& c) {
  Row row{name, {}, {}};
  try {
    const plan::Plan plan = plan::make_plan(name, c.problem, c.pass, "--schedule");
    row.summary = summarize(simulate::simulate(plan, c.cluster));
  } catch (const Error& error) {
    row.reason = error.what();
  }
  return row;
}

}  // namespace

std::vector<Row> compare(const Case& c) {
  std::vector<Row> rows;
  for (const std::string& name : candidates(c.problem.ranks())) rows.push_back(try_schedule(name, c));
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    if (a.reason.empty() != b.reason.empty()) return a.reason.empty();
    return a.reason.empty() && a.summary.time < b.summary.time;
  });
  return rows;
}

std::string table(const std::vector<Row>& rows) {
  std::size_t width = 8;
  for (const Row& row : rows) width = std::max(width, row.schedule.size());
  std::string text =
      fmt::format("{:{}}  {:>10}  {:>10}  {:>10}  {:>10}  {:>9}  {:>9}  {:>10}\n", "schedule", width,
                  "time ms", "exposed ms", "in nodes", "between", "imbalance", "of steps", "buffers");
  for (const Row& row : rows) {
    const Summary& s = row.summary;
    if (!row.reason.empty()) continue;
    fmt::format_to(std::back_inserter(text),
                   "{:{}}  {:>10.3f}  {:>10.3f}  {:>10}  {:>10}  {:>9.3f}  {:>9.3f}  {:>10}\n", row.schedule,
                   width, s.time * 1e3, s.exposed * 1e3, bytes_text(s.intra_bytes), bytes_text(s.inter_bytes),
                   s.imbalance.worker, s.imbalance.step, bytes_text(s.buffer_bytes));
  }
  for (const Row& row : rows) {
    if (!row.reason.empty())
      fmt::format_to(std::back_inserter(text), "{:{}}  refuses: {}\n", row.schedule, width, row.reason);
  }
  return text;
}

}  // namespace annulus::planner
