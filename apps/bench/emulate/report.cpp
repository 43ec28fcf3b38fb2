#include "bench/emulate/report.hpp"
#include "common/cluster_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include <annulus/base/version.hpp>

namespace annulus::bench {

using nlohmann::json;

namespace {

std::size_t best_repetition(const std::vector<double>& seconds) {
  return static_cast<std::size_t>(std::min_element(seconds.begin(), seconds.end()) - seconds.begin());
}

const EmulatedSchedule* first_served(const EmulationReport& report) {
  for (const EmulatedSchedule& s : report.schedules)
    if (s.reason.empty()) return &s;
  return nullptr;
}

struct Unit {
  const char* name;
  double seconds;
};

/// The largest in which all predicted times are at least 1; shrunk clusters need small ones.
Unit unit_of(const EmulationReport& report) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const EmulatedSchedule& s : report.schedules)
    if (s.reason.empty()) shortest = std::min({shortest, s.forward.predicted, s.backward.predicted});
  for (const Unit unit : {Unit{"s", 1}, Unit{"ms", 1e-3}, Unit{"µs", 1e-6}})
    if (shortest >= unit.seconds) return unit;
  return {"ns", 1e-9};
}

std::string text_of(const EmulationReport& report) {
  const plan::Problem& p = report.problem;
  return fmt::format(
      "{}; {} tokens, {} heads ({} kv) of {}, batch {}, {}, mask {}; {}, {}; cluster {}, times {:g} times as "
      "long\n",
      p.topology.to_string(), p.mask.tokens(), p.heads, p.kv_heads, p.head_dim, p.batch,
      name_of(p.activation), p.mask.to_string(), report.stand_in ? "kernels sleep" : "kernels compute",
      report.overlap ? "with overlap" : "without overlap", report.origin, report.time_scale);
}

json pass_json(const EmulatedPass& pass) {
  return {{"seconds", pass.best()},
          {"seconds_each", pass.seconds},
          {"exposed_seconds", pass.best_exposed()},
          {"predicted", {{"seconds", pass.predicted}, {"exposed_seconds", pass.predicted_exposed}}},
          {"measured_over_predicted", pass.best() / pass.predicted}};
}

json schedule_json(const EmulatedSchedule& s, const EmulatedSchedule& first) {
  json j = {{"schedule", s.schedule}, {"layout", s.layout}};
  if (!s.reason.empty()) {
    j["refused"] = s.reason;
    return j;
  }
  j["forward"] = pass_json(s.forward);
  j["backward"] = pass_json(s.backward);
  j["seconds"] = s.best();
  j["predicted_seconds"] = s.predicted();
  j["factor_of_first"] = {{"measured", first.best() / s.best()},
                          {"predicted", first.predicted() / s.predicted()}};
  return j;
}

}  // namespace

double EmulatedPass::best() const {
  return seconds.at(best_repetition(seconds));
}
double EmulatedPass::best_exposed() const {
  return exposed.at(best_repetition(seconds));
}

std::string to_table(const EmulationReport& report) {
  std::size_t width = 8;
  for (const EmulatedSchedule& s : report.schedules)
    width = std::max(width, s.schedule.size() + s.layout.size() + 1);
  const Unit unit = unit_of(report);
  std::string text = text_of(report);
  text += fmt::format(
      "\n{}: emulated / predicted, their ratio; exposed: likewise, of the rank that waits longest; factor: "
      "how much faster than the first row, emulated / predicted\n{:{}}  {:>25}  {:>17}  {:>25}  {:>17}  "
      "{:>13}\n",
      unit.name, "schedule", width, "forward", "exposed", "backward", "exposed", "factor");
  const auto pass = [&](const EmulatedPass& p) {
    const auto in = [&](double seconds) { return seconds / unit.seconds; };
    return fmt::format("  {:>8.2f} / {:>8.2f} {:>5.3f}  {:>7.2f} / {:>7.2f}", in(p.best()), in(p.predicted),
                       p.best() / p.predicted, in(p.best_exposed()), in(p.predicted_exposed));
  };
  const EmulatedSchedule* const first = first_served(report);
  for (const EmulatedSchedule& s : report.schedules) {
    const std::string name = s.schedule + " " + s.layout;
    if (!s.reason.empty()) {
      text += fmt::format("{:{}}  refuses: {}\n", name, width, s.reason);
      continue;
    }
    text += fmt::format("{:{}}{}{}  {:>5.3f} / {:>5.3f}\n", name, width, pass(s.forward), pass(s.backward),
                        first->best() / s.best(), first->predicted() / s.predicted());
  }
  return text;
}

json to_json(const EmulationReport& report) {
  const plan::Problem& p = report.problem;
  json j = {{"program", "annulus-bench emulate"},
            {"version", version()},
            {"git_hash", git_hash()},
            {"config",
             {{"topology", p.topology.to_string()},
              {"ranks", p.ranks()},
              {"nodes", p.topology.nodes()},
              {"tokens", p.mask.tokens()},
              {"heads", p.heads},
              {"kv_heads", p.kv_heads},
              {"head_dim", p.head_dim},
              {"batch", p.batch},
              {"dtype", name_of(p.activation)},
              {"mask", p.mask.to_string()},
              {"stand_in", report.stand_in},
              {"overlap", report.overlap},
              {"time_scale", report.time_scale}}},
            {"cluster", app::to_json(report.cluster)},
            {"schedules", json::array()}};
  const EmulatedSchedule* const first = first_served(report);
  for (const EmulatedSchedule& s : report.schedules) {
    j["schedules"].push_back(schedule_json(s, first == nullptr ? s : *first));
  }
  return j;
}

}  // namespace annulus::bench
