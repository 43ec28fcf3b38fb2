// annulus-plan: what a schedule does, rank by rank and step by step, and what it takes on a cluster.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <ctime>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "base/units.hpp"
#include "common/conventions.hpp"
#include "common/run_commands.hpp"
#include "plan/options.hpp"
#include "plan/report.hpp"

namespace annulus::planner {
namespace {

void print_summary(const plan::Plan& plan, const PlanCase& c, const simulator::Simulation& simulation,
                   const std::optional<simulator::ReceivedKeys>& keys) {
  fmt::print("{}, {}: {}, {} steps\n{}, layout {}\n\n", plan.schedule, plan.pass_text(),
             plan.problem.topology.to_string(), plan.steps, options::text_of(plan.problem),
             plan.problem.layout.to_string());
  if (!c.sparsity.selected.all())
    fmt::print("{:<22}  {:.3f}% of the pairs\n", "computed", 100 * c.sparsity.selected.density);
  for (const auto& [name, value] : facts(summarize(simulation))) fmt::print("{:<22}  {}\n", name, value);
  fmt::print("predicted by rates of {}\n", c.rates);
  if (c.sparsity.blocks != nullptr)
    fmt::print("{:<22}  {} by each rank, not in the times\n", "sent for columns",
               bytes_text(plan::column_traffic(plan, c.sparsity.columns)));
  if (keys)
    for (const auto& [name, value] : facts(*keys)) fmt::print("{:<22}  {}\n", name, value);
}

/// Fills in the schedule and the layout that are left open.
void choose(PlanCase& c) {
  const std::array passes = {c.pass};
  const simulator::ScheduleChoice choice =
      simulator::choose(c.problem, c.schedule, c.layout, passes, c.cluster, c.choose_options());
  fmt::print("{}predicted by rates of {}\n\n", table(choice), c.rates);
  c.schedule = choice.schedule;
  c.problem.layout = choice.layout;
}

int run(const PlanOptions& options) {
  PlanCase c = make_case(options);
  std::vector<ComparisonRow> comparison;
  if (options.compare) {
    comparison = compare(c);
    fmt::print("{}predicted by rates of {}\n", table(comparison), c.rates);
  }
  const bool files = !options.json.empty() || !options.html.empty();
  if (options.compare && !files && !options.print && !options.validate) return 0;

  if (c.is_open()) choose(c);
  if (c.shows_documents) fmt::print("{}", documents_report(c));
  const std::clock_t planning = std::clock();
  const plan::Plan plan = plan::make_plan(c.schedule, c.problem, c.pass, "--schedule");
  for (int s = 0; s < plan.steps; ++s) (void)plan.step(0, s);
  c.planning_seconds = static_cast<double>(std::clock() - planning) / CLOCKS_PER_SEC;
  if (options.validate) {
    plan::validate(plan);
    fmt::print("{} {}: the plan is valid\n", plan.schedule, plan.pass_text());
  }
  if (options.print) fmt::print("{}", options.rank ? to_string(plan, *options.rank) : to_string(plan));
  if (!options.html.empty()) check_html_size(plan);
  const auto detail = options.html.empty() ? simulator::Detail::totals : simulator::Detail::timeline;
  const simulator::Simulation simulation =
      simulator::simulate(plan, c.cluster, detail, plan::RankSubset::automatic, c.sparsity.selected);
  const auto keys = received_keys(plan, c);
  if (!options.json.empty()) write_json(options.json, plan, c, simulation, keys, comparison);
  if (!options.html.empty()) write_html(options.html, plan, c, simulation);
  if (!options.compare && !options.print) print_summary(plan, c, simulation, keys);
  return 0;
}

}  // namespace
}  // namespace annulus::planner

int main(int argc, char** argv) {
  CLI::App app("Shows, proves, simulates and compares schedules of distributed attention (docs/planning.md).",
               "annulus-plan");
  annulus::app::add_conventions(app, "annulus-plan");
  annulus::planner::PlanOptions options;
  annulus::planner::add_options(app, options);
  return annulus::app::run_program(
      app, [&] { return annulus::planner::run(options); }, argc, argv);
}
