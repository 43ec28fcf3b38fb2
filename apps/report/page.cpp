#include "page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "attention.hpp"
#include "base/units.hpp"
#include "html/charts.hpp"
#include "html/element.hpp"
#include "html/page.hpp"
#include "html/table.hpp"

namespace annulus::report {

namespace {

using Value = std::function<double(const StepRecord&)>;

double mean_loss(const RunRecord& run, std::size_t begin, std::size_t end) {
  double sum = 0, count = 0;
  for (std::size_t i = begin; i < end; ++i)
    if (std::isfinite(run.steps[i].loss)) sum += run.steps[i].loss, ++count;
  return sum / count;
}

// Steps over which a line is smoothed.
std::size_t window_of(const RunRecord& run) {
  return std::max<std::size_t>(5, run.steps.size() / 50);
}

std::string name_of(const RunRecord& run, std::size_t index, const std::vector<RunRecord>& runs) {
  const bool alone = std::ranges::count(runs, run.name, &RunRecord::name) == 1;
  return alone ? run.name : fmt::format("{} ({})", run.name, index + 1);
}

// The mean of the points up to half a window before and behind each.
std::vector<std::pair<double, double>> smoothed(const std::vector<std::pair<double, double>>& points,
                                                std::size_t window) {
  std::vector<double> sums{0};
  for (const auto& point : points) sums.push_back(sums.back() + point.second);
  std::vector<std::pair<double, double>> means;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t begin = i - std::min(i, window / 2), end = std::min(points.size(), i + window / 2 + 1);
    means.emplace_back(points[i].first, (sums[end] - sums[begin]) / double(end - begin));
  }
  return means;
}

struct Chart {
  std::string title, unit = {};
  Value value;
  bool from_zero = true;
  bool smooth = false;
  bool over_tokens = false;
};

// Without the first step of each process, which warms up and would bend the axis.
bool warms_up(const RunRecord& run, const StepRecord& step) {
  return step.step == run.steps.front().step ||
         std::ranges::find(run.starts, step.step - 1) != run.starts.end();
}

std::string draw(const Chart& chart, const std::vector<RunRecord>& runs) {
  html::SeriesChart drawing{.title = chart.title,
                            .x_unit = chart.over_tokens ? "tokens" : "optimizer steps",
                            .y_unit = chart.unit,
                            .from_zero = chart.from_zero};
  const bool timed = chart.unit == "tokens/s" || chart.unit == "%";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    html::Series series{.name = name_of(runs[i], i, runs), .colour = html::series_colour(i), .points = {}};
    for (const StepRecord& step : runs[i].steps)
      if (const double value = chart.value(step); std::isfinite(value) && !(timed && warms_up(runs[i], step)))
        series.points.emplace_back(double(chart.over_tokens ? step.tokens : step.step), value);
    if (std::ranges::all_of(series.points, [](const auto& point) { return point.second == 0; })) continue;
    if (chart.smooth && series.points.size() > 20) {
      html::Series raw = series;
      raw.faint = true;
      series.points = smoothed(series.points, window_of(runs[i]));
      series.name += ", smoothed";
      drawing.series.push_back(std::move(raw));
    }
    drawing.series.push_back(std::move(series));
    if (chart.over_tokens || !chart.smooth) continue;
    for (const std::int64_t step : runs[i].starts)
      drawing.marks.emplace_back(double(step), fmt::format("{}: went on after step {}", runs[i].name, step));
    for (const std::int64_t step : runs[i].checkpoints)
      drawing.marks.emplace_back(double(step), fmt::format("{}: checkpoint of step {}", runs[i].name, step));
  }
  return drawing.series.empty() ? "" : html::figure(to_svg(drawing));
}

// Of runs that select pairs of attention; empty where none does.
std::string selection_charts(const std::vector<RunRecord>& runs) {
  const auto selects = [](const StepRecord& step) { return step.density < 1 || std::isfinite(step.recall); };
  if (std::ranges::none_of(runs,
                           [&](const RunRecord& run) { return std::ranges::any_of(run.steps, selects); }))
    return "";
  return draw({.title = "density, share of the pairs that are computed", .value = &StepRecord::density},
              runs) +
         draw({.title = "recall, share of the probability that the selected pairs hold",
               .value = &StepRecord::recall},
              runs);
}

// The last validation of a run; null where there was none.
const StepRecord* last_validation(const RunRecord& run) {
  const auto found = std::find_if(run.steps.rbegin(), run.steps.rend(),
                                  [](const StepRecord& step) { return !step.validation.empty(); });
  return found == run.steps.rend() ? nullptr : &*found;
}

std::string line_name(const std::string& run, const std::string& set, const std::vector<RunRecord>& runs) {
  return runs.size() > 1 ? fmt::format("{}: {}", run, set) : set;
}

// Loss on each set over optimizer steps, and, of the last validation, by what comes before a token.
std::string validation_charts(const std::vector<RunRecord>& runs) {
  html::SeriesChart over_steps{.title = "validation loss",
                               .x_unit = "optimizer steps",
                               .y_unit = "nats per token",
                               .from_zero = false};
  html::LineChart by_position{.title = "validation loss by tokens before, at the end",
                              .x_unit = "tokens of the document before, up to",
                              .y_unit = "nats per token"};
  std::vector<html::LegendKey> keys;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const StepRecord* const last = last_validation(runs[i]);
    if (last == nullptr) continue;
    for (const auto& [set, final] : last->validation) {
      const std::string name = line_name(name_of(runs[i], i, runs), set, runs);
      const html::Colour colour = keys.emplace_back(html::series_colour(keys.size()), name).colour;
      html::Series series{.name = name, .colour = colour, .points = {}};
      for (const StepRecord& step : runs[i].steps)
        if (const auto found = step.validation.find(set); found != step.validation.end())
          series.points.emplace_back(double(step.step), found->second.loss);
      over_steps.series.push_back(std::move(series));
      html::ChartLine line{.name = name, .colour = colour, .points = {}};
      for (const auto& [up_to, loss] : final.by_position) line.points.emplace_back(double(up_to), loss);
      if (!line.points.empty()) by_position.lines.push_back(std::move(line));
    }
  }
  if (over_steps.series.empty()) return "";
  return html::legend(keys) + html::figure(to_svg(over_steps)) +
         (by_position.lines.empty() ? "" : html::figure(to_svg(by_position)));
}

// Mean seconds by part of the steps that were measured and do not warm up; of all measured ones where these
// do.
std::map<std::string, double> parts_of(const RunRecord& run) {
  std::vector<const StepRecord*> measured;
  for (const StepRecord& step : run.steps)
    if (!step.parts.empty()) measured.push_back(&step);
  const auto warming =
      std::ranges::stable_partition(measured, [&](const StepRecord* step) { return !warms_up(run, *step); });
  if (warming.begin() != measured.begin()) measured.erase(warming.begin(), measured.end());
  std::map<std::string, double> mean;
  for (const StepRecord* step : measured)
    for (const auto& [part, seconds] : step->parts)
      mean[part] += seconds / static_cast<double>(measured.size());
  return mean;
}

// Empty where no step was measured by part.
std::string parts_table(const std::vector<RunRecord>& runs) {
  std::vector<html::Table::Column> columns{{"part of a step", html::Table::Align::text}};
  std::vector<std::map<std::string, double>> parts;
  std::map<std::string, double> most;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    columns.push_back({runs.size() > 1 ? name_of(runs[i], i, runs) : "time, and its share"});
    for (const auto& [part, seconds] : parts.emplace_back(parts_of(runs[i])))
      most[part] = std::max(most[part], seconds);
  }
  if (most.empty()) return "";
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [part, seconds] : most) order.emplace_back(seconds, part);
  std::ranges::sort(order, std::greater());
  html::Table table(columns);
  for (const auto& [seconds, part] : order) {
    std::vector<std::string> cells{part};
    std::ranges::replace(cells.front(), '_', ' ');
    for (const auto& of_run : parts) {
      double all = 0;
      for (const auto& [name, value] : of_run) all += value;
      const auto found = of_run.find(part);
      cells.push_back(found == of_run.end() ? "–"
                                            : fmt::format("{} ({:.1f} %)", duration_text(found->second),
                                                          100 * found->second / all));
    }
    table.add(cells);
  }
  return table.to_html();
}

std::string memory_table(const RunRecord& run) {
  html::Table table(
      {{run.memory_on_device ? "memory of a GPU" : "memory of a rank", html::Table::Align::text},
       {"measured"},
       {"predicted"}});
  for (const MemoryRow& row : run.memory)
    if (row.measured > 0 || row.predicted > 0)
      table.add({row.category, bytes_text(row.measured), bytes_text(row.predicted)});
  return table.to_html();
}

std::string differences_table(const std::vector<RunRecord>& runs) {
  std::set<std::string> keys;
  for (const RunRecord& run : runs)
    for (const auto& [key, value] : run.configuration) keys.insert(key);
  std::vector<html::Table::Column> columns{{"key", html::Table::Align::text}};
  for (std::size_t i = 0; i < runs.size(); ++i)
    columns.push_back({name_of(runs[i], i, runs), html::Table::Align::text});
  html::Table table(columns);
  std::size_t rows = 0;
  for (const std::string& key : keys) {
    if (key == "run.folder") continue;
    std::vector<std::string> cells{key};
    for (const RunRecord& run : runs) {
      const auto found = run.configuration.find(key);
      cells.push_back(found == run.configuration.end() ? "–" : found->second);
    }
    if (std::all_of(cells.begin() + 2, cells.end(),
                    [&](const std::string& cell) { return cell == cells[1]; }))
      continue;
    table.add(cells);
    ++rows;
  }
  return rows > 0 ? table.to_html()
                  : html::element("p", "The configurations are the same but for run.folder.");
}

std::string heading(std::string_view text) {
  return html::element("h2", text);
}

}  // namespace

std::string headline(const RunRecord& run) {
  const std::size_t count = run.steps.size(), window = std::min<std::size_t>(10, count);
  double seconds = 0, tokens = 0, used = 0, waiting = 0;  // of steps that do not warm up, where there are any
  for (const StepRecord& step : run.steps) {
    if (warms_up(run, step) && count > 1 + run.starts.size()) continue;
    seconds += step.seconds;
    tokens += step.tokens_per_second * step.seconds;
    used += step.mfu * step.seconds;
    waiting += step.waiting;
  }
  const StepRecord& last = run.steps.back();
  const double first_loss = mean_loss(run, 0, window), last_loss = mean_loss(run, count - window, count);
  std::string text =
      std::isfinite(first_loss) && std::isfinite(last_loss)
          ? fmt::format("The loss went from {:.3f} to {:.3f} nats per token", first_loss, last_loss)
          : fmt::format("The loss is not finite in the {} {} steps",
                        std::isfinite(first_loss) ? "last" : "first", window);
  text += fmt::format(" in {} optimizer steps and {} tokens", last.step, last.tokens);
  if (seconds > 0) text += fmt::format(", at {:.0f} tokens/s", tokens / seconds);
  if (seconds > 0 && std::isfinite(used)) text += fmt::format(" (MFU {:.1f} %)", 100 * used / seconds);
  if (waiting > 0)
    text +=
        fmt::format("; {:.1f} % of the time, a rank waited for other ranks' data", 100 * waiting / seconds);
  text += ".";
  if (const StepRecord* const last = last_validation(run)) {
    std::vector<std::string> losses;
    for (const auto& [set, validation] : last->validation)
      losses.push_back(fmt::format("{:.3f} ({})", validation.loss, set));
    text += fmt::format(" On data that it does not learn from, the loss is {} after step {}.",
                        fmt::join(losses, ", "), last->step);
  }
  if (run.summary.is_null())
    text += " The run goes on, or was killed.";
  else if (!run.summary.value("finished", true))
    text += fmt::format(" It was stopped at step {} of {}.", last.step,
                        run.summary.value("steps", std::int64_t{0}));
  return text;
}

std::string page(const std::vector<RunRecord>& runs) {
  std::vector<html::LegendKey> keys;
  std::string body;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string name = name_of(runs[i], i, runs);
    keys.push_back({html::series_colour(i), name});
    body += html::element(
        "p", runs.size() > 1 ? fmt::format("{}: {}", name, headline(runs[i])) : headline(runs[i]));
  }
  body += html::legend(keys,
                       "Thin lines are raw values, thick ones means over a window; dashed lines across mark "
                       "checkpoints that are still there, and restarts.");
  const Value loss = &StepRecord::loss;
  body += heading("Learning");
  body += draw({.title = "loss", .unit = "nats per token", .value = loss, .from_zero = false, .smooth = true},
               runs);
  body += draw({.title = "loss over tokens",
                .unit = "nats per token",
                .value = loss,
                .from_zero = false,
                .smooth = true,
                .over_tokens = true},
               runs);
  body += validation_charts(runs);
  body += draw(
      {.title = "norm of the gradient, before clipping", .value = &StepRecord::gradient_norm, .smooth = true},
      runs);
  body += draw({.title = "learning rate", .value = &StepRecord::learning_rate}, runs);
  body += selection_charts(runs);
  if (std::ranges::any_of(runs, [](const RunRecord& run) { return !run.audits.empty(); })) {
    body += heading("Attention by layer and head");
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].audits.empty()) continue;
      if (runs.size() > 1) body += html::element("h3", name_of(runs[i], i, runs));
      body += attention_figures(runs[i]);
    }
  }
  body += heading("Speed");
  body += draw({.title = "tokens per second, all ranks",
                .unit = "tokens/s",
                .value = &StepRecord::tokens_per_second,
                .smooth = true},
               runs);
  body += draw({.title = "model FLOPs utilization",
                .unit = "%",
                .value = [](const StepRecord& step) { return 100 * step.mfu; },
                .smooth = true},
               runs);
  body += draw(
      {.title = "waiting for other ranks' data, share of a step",
       .unit = "%",
       .value =
           [](const StepRecord& step) { return step.seconds > 0 ? 100 * step.waiting / step.seconds : 0; },
       .smooth = true},
      runs);
  body += parts_table(runs);
  body += heading("Memory");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs.size() > 1) body += html::element("h3", name_of(runs[i], i, runs));
    body += memory_table(runs[i]);
  }
  if (runs.size() > 1) body += heading("What differs between the configurations") + differences_table(runs);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < runs.size(); ++i) names.push_back(name_of(runs[i], i, runs));
  return html::to_text(
      {.title = fmt::format("{}: report", fmt::join(names, ", ")),
       .heading = runs.size() > 1 ? fmt::format("{} runs", runs.size()) : names.front(),
       .subtitle = runs.size() > 1 ? fmt::format("{}", fmt::join(names, ", ")) : "a training run of Annulus",
       .body = body,
       .program = "annulus-report"});
}

}  // namespace annulus::report
