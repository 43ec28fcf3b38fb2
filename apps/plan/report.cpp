#include "plan/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>

#include "base/units.hpp"
#include "common/text.hpp"

namespace annulus::planner {

namespace {

std::string ms(double seconds) {
  return fmt::format("{:.3f}", seconds * 1e3);
}

ComparisonRow try_schedule(const std::string& name, const PlanCase& c) {
  ComparisonRow row{name, c.layout, {}, {}};
  try {
    plan::Problem problem = c.problem;
    if (c.layout == simulator::automatic) {
      const std::array passes = {c.pass};
      problem.layout =
          simulator::choose(problem, name, c.layout, passes, c.cluster, c.choose_options()).layout;
      row.layout = problem.layout.to_string();
    }
    row.summary = summarize(simulator::simulate(plan::make_plan(name, problem, c.pass, "--schedule"),
                                                c.cluster, simulator::Detail::totals,
                                                plan::RankSubset::automatic, c.sparsity.selected));
    require(!c.memory_limit || row.summary.buffer_bytes <= *c.memory_limit,
            "its exchange buffers have {} bytes per rank, more than the limit of {}",
            row.summary.buffer_bytes, c.memory_limit.value_or(0));
  } catch (const Error& error) {
    row.reason = error.what();
  }
  return row;
}

}  // namespace

PlanSummary summarize(const simulator::Simulation& simulation) {
  PlanSummary s;
  s.time = simulation.time;
  s.imbalance = simulation.imbalance;
  for (const simulator::RankSummary& rank : simulation.ranks) {
    s.exposed = std::max(s.exposed, rank.exposed_communication);
    s.exposed_mean += rank.exposed_communication / static_cast<double>(simulation.ranks.size());
    s.intra_bytes += sum(rank.sent, simulator::LinkClass::intra_node);
    s.inter_bytes += sum(rank.sent, simulator::LinkClass::inter_node);
    s.buffer_bytes = std::max(s.buffer_bytes, rank.buffer_bytes);
  }
  return s;
}

std::vector<std::pair<std::string, std::string>> facts(const PlanSummary& s) {
  return {{"time", fmt::format("{:.3f} ms", s.time * 1e3)},
          {"exposed communication", fmt::format("at most {:.3f} ms, mean over ranks {:.3f} ms",
                                                s.exposed * 1e3, s.exposed_mean * 1e3)},
          {"sent inside nodes", bytes_text(s.intra_bytes)},
          {"sent between nodes", bytes_text(s.inter_bytes)},
          {"imbalance degree",
           fmt::format("{:.3f} of ranks, {:.3f} of plan steps", s.imbalance.worker, s.imbalance.step)},
          {"exchange buffers", fmt::format("at most {} per rank", bytes_text(s.buffer_bytes))}};
}

std::optional<simulator::ReceivedKeys> received_keys(const plan::Plan& plan, const PlanCase& c) {
  constexpr std::int64_t most_marks = std::int64_t{1} << 32;  // of keys by rank; each is a few bits
  if (c.sparsity.blocks == nullptr ||
      std::int64_t{c.problem.ranks()} * c.problem.kv_heads > most_marks / c.sparsity.blocks->tokens())
    return std::nullopt;
  return simulator::count_received_keys(plan, *c.sparsity.blocks);
}

std::vector<std::pair<std::string, std::string>> facts(const simulator::ReceivedKeys& keys) {
  if (keys.of_kv_heads.received == 0) return {};
  const auto share = [](std::int64_t part, std::int64_t all) {
    return 100 * static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(all, 1));
  };
  const auto &one = keys.of_kv_heads, &all = keys.of_all_heads;
  return {
      {"unneeded K, V rows", fmt::format("{:.2f}% of those received ({:.2f}% in no kv head needed)",
                                         share(one.unneeded, one.visible), share(all.unneeded, all.visible))},
      {"  nor passed on", fmt::format("{:.2f}% ({:.2f}%) are not needed by later ranks on their way either",
                                      share(one.unneeded_onward, one.visible_onward),
                                      share(all.unneeded_onward, all.visible_onward))}};
}

std::vector<ComparisonRow> compare(const PlanCase& c) {
  std::vector<ComparisonRow> rows;
  for (const std::string& name : simulator::candidate_schedules(c.problem))
    rows.push_back(try_schedule(name, c));
  std::ranges::stable_sort(rows, [](const ComparisonRow& a, const ComparisonRow& b) {
    if (a.reason.empty() != b.reason.empty()) return a.reason.empty();
    return a.reason.empty() && a.summary.time < b.summary.time;
  });
  return rows;
}

std::string table(const std::vector<ComparisonRow>& rows) {
  std::vector<std::vector<std::string>> lines = {{"schedule", "layout", "time ms", "exposed ms", "in nodes",
                                                  "between", "imbalance", "of steps", "buffers"}};
  for (const ComparisonRow& row : rows) {
    const PlanSummary& s = row.summary;
    if (!row.reason.empty())
      lines.push_back({row.schedule, "refuses: " + row.reason});
    else
      lines.push_back({row.schedule, row.layout, ms(s.time), ms(s.exposed), bytes_text(s.intra_bytes),
                       bytes_text(s.inter_bytes), fmt::format("{:.3f}", s.imbalance.worker),
                       fmt::format("{:.3f}", s.imbalance.step), bytes_text(s.buffer_bytes)});
  }
  return app::table_text(lines, 2);
}

std::string table(const simulator::ScheduleChoice& choice) {
  constexpr std::size_t most_shown = 8;
  std::vector<std::vector<std::string>> lines = {{"schedule", "layout", "estimate ms", "simulated ms"}};
  std::size_t possible = 0;
  for (const simulator::ScheduleCandidate& c : choice.candidates) {
    if (!c.reason.empty() || ++possible > most_shown) continue;
    lines.push_back({c.schedule, c.layout.to_string(), ms(c.estimate), c.seconds ? ms(*c.seconds) : "-"});
  }
  return fmt::format("chosen: {} on layout {}, of {} possible candidates\n{}", choice.schedule,
                     choice.layout.to_string(), possible, app::table_text(lines, 2));
}

}  // namespace annulus::planner
