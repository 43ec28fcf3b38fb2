#include "bench/emulate/report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/output/cluster_json.hpp"
#include "common/output/output_json.hpp"
#include "common/text.hpp"
#include "options/problem.hpp"

namespace annulus::bench {

using nlohmann::json;

namespace {

/// The first that is served; the last of those where none is.
const EmulatedSchedule& first_served(const EmulationReport& report) {
  const auto found = std::ranges::find(report.schedules, "", &EmulatedSchedule::reason);
  return found == report.schedules.end() ? report.schedules.back() : *found;
}

struct TimeUnit {
  const char* name;
  double seconds;
};

/// The largest in which all predicted times are at least 1; shrunk clusters need small ones.
TimeUnit unit_of(const EmulationReport& report) {
  for (const TimeUnit unit : {TimeUnit{"s", 1}, TimeUnit{"ms", 1e-3}, TimeUnit{"µs", 1e-6}})
    if (report.predicted_range().first >= unit.seconds) return unit;
  return {"ns", 1e-9};
}

json pass_json(const EmulatedPass& pass) {
  const auto [seconds, exposed, beside] = pass.predicted;
  json j = {{"seconds", pass.best.time},
            {"seconds_each", pass.seconds},
            {"exposed_communication_seconds", pass.best.exposed},
            {"predicted", {{"seconds", seconds}, {"exposed_communication_seconds", exposed}}},
            {"measured_over_predicted", pass.best.time / seconds}};
  if (beside > 0) {
    j["beside"] = {{"seconds", pass.best.beside},
                   {"predicted_seconds", beside},
                   {"measured_over_predicted", pass.best.beside / beside}};
  }
  return j;
}

json schedule_json(const EmulatedSchedule& s, const EmulatedSchedule& first) {
  json j = {{"schedule", s.schedule}, {"layout", s.layout}};
  if (!s.reason.empty()) {
    j["unsupported"] = s.reason;
    return j;
  }
  j["forward"] = pass_json(s.forward);
  j["backward"] = pass_json(s.backward);
  j["seconds"] = s.best();
  j["predicted_seconds"] = s.predicted();
  j["speedup_over_first"] = {{"measured", first.best() / s.best()},
                             {"predicted", first.predicted() / s.predicted()}};
  return j;
}

/// "", or what kernels sleep for.
std::string sparsity_text(const options::Sparsity& sparsity) {
  if (sparsity.selected.all()) return "";
  return fmt::format(" for {:.3f}% of the pairs{}", 100 * sparsity.selected.density,
                     sparsity.columns > 0 ? ", without columns" : "");
}

}  // namespace

void EmulatedPass::add(const emulator::Measured& measured, double scale) {
  seconds.push_back(measured.time / scale);
  if (seconds.back() < best.time)
    best = {seconds.back(), std::ranges::max(measured.exposed_communication) / scale,
            measured.beside_ended / scale};
}

std::pair<double, double> EmulationReport::predicted_range() const {
  std::pair<double, double> range{std::numeric_limits<double>::infinity(), 0};
  for (const EmulatedSchedule& s : schedules) {
    if (!s.reason.empty()) continue;
    for (const EmulatedPass* pass : {&s.forward, &s.backward})
      range = {std::min(range.first, pass->predicted.time),
               std::max({range.second, pass->predicted.time, pass->predicted.beside})};
  }
  return range;
}

std::string to_table(const EmulationReport& report) {
  const TimeUnit unit = unit_of(report);
  const auto pair = [&](double emulated, double predicted) {
    return fmt::format("{:.2f} / {:.2f}", emulated / unit.seconds, predicted / unit.seconds);
  };
  const auto& [gathered, summed, copied] = report.beside;
  const bool beside = gathered + summed + copied > 0;
  std::vector<std::vector<std::string>> lines = {{"schedule", "layout"}};
  for (const char* pass : {"forward", "backward"}) {
    for (const char* column : {pass, "ratio", "exposed"}) lines[0].push_back(column);
    if (beside)
      for (const char* column : {"beside", "ratio"}) lines[0].push_back(column);
  }
  lines[0].push_back("factor");
  const EmulatedSchedule& first = first_served(report);
  for (const EmulatedSchedule& s : report.schedules) {
    std::vector<std::string>& line = lines.emplace_back(std::vector{s.schedule, s.layout});
    if (!s.reason.empty()) {
      line.push_back("refuses: " + s.reason);
      continue;
    }
    for (const EmulatedPass* pass : {&s.forward, &s.backward}) {
      line.push_back(pair(pass->best.time, pass->predicted.time));
      line.push_back(fmt::format("{:.3f}", pass->best.time / pass->predicted.time));
      line.push_back(pair(pass->best.exposed, pass->predicted.exposed));
      if (!beside) continue;
      const double ended = pass->predicted.beside;
      line.push_back(ended > 0 ? pair(pass->best.beside, ended) : "-");
      line.push_back(ended > 0 ? fmt::format("{:.3f}", pass->best.beside / ended) : "-");
    }
    line.push_back(
        fmt::format("{:.3f} / {:.3f}", first.best() / s.best(), first.predicted() / s.predicted()));
  }
  return fmt::format(
      "{}; {}; {}{}, {}; cluster {}, times {:g} times as long{}\n\n{}: emulated / predicted, their ratio; "
      "exposed: likewise, of the rank that waits longest; {}"
      "factor: how much faster than the first row, emulated / predicted\n{}",
      report.problem.topology.to_string(), options::text_of(report.problem),
      report.synthetic_kernel ? "kernels sleep" : "kernels compute", sparsity_text(report.sparsity),
      report.overlap ? "with overlap" : "without overlap", report.origin, report.time_scale,
      beside ? fmt::format("\nbeside each pass: {:g} bytes gathered, beside the backward {:g} bytes reduced, "
                           "and {:g} bytes of each rank copied to its host and back",
                           gathered, summed, copied)
             : "",
      unit.name, beside ? "beside: likewise, until all of that has ended; " : "", app::table_text(lines, 2));
}

json to_json(const EmulationReport& report) {
  json config = app::to_json(report.problem);
  config.update({{"topology", report.problem.topology.to_string()},
                 {"nodes", report.problem.topology.nodes()},
                 {"synthetic_kernels", report.synthetic_kernel},
                 {"overlap", report.overlap},
                 {"gather", report.beside.gathered},
                 {"reduce", report.beside.summed},
                 {"offload", report.beside.copied},
                 {"time_scale", report.time_scale}});
  if (!report.sparsity.selected.all()) config["density"] = report.sparsity.selected.density;
  json schedules = json::array(), j = app::output_head("annulus-bench emulate");
  for (const EmulatedSchedule& s : report.schedules)
    schedules.push_back(schedule_json(s, first_served(report)));
  j.update({{"config", config}, {"cluster", app::to_json(report.cluster)}, {"schedules", schedules}});
  return j;
}

}  // namespace annulus::bench
