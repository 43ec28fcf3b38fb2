#include "eval/prefill_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/units.hpp"
#include "bench/common/sample_json.hpp"
#include "common/output/csv.hpp"
#include "common/text.hpp"
#include "html/charts.hpp"
#include "html/element.hpp"
#include "html/page.hpp"
#include "html/table.hpp"

namespace annulus::eval {

namespace {

const std::vector<std::string> prefill_headings = {"tokens", "ranks",   "schedule", "layout",
                                                   "median", "fastest", "slowest",  "tokens/s"};

std::vector<std::string> cells_of(const Prefill& one) {
  std::vector<std::string> cells = {fmt::format("{}", one.tokens), fmt::format("{}", one.ranks), one.schedule,
                                    one.layout};
  if (!one.unsupported.empty()) {
    cells.insert(cells.end(), {"unsupported", "–", "–", "–"});
    return cells;
  }
  for (const double seconds : {one.seconds.median, one.seconds.min, one.seconds.max})
    cells.push_back(duration_text(seconds));
  cells.push_back(fmt::format("{:.0f}", one.tokens_per_second()));
  return cells;
}

}  // namespace

std::string to_table(const std::vector<Prefill>& all) {
  std::vector<std::vector<std::string>> rows{prefill_headings};
  for (const Prefill& one : all) rows.push_back(cells_of(one));
  std::string text = app::table_text(rows, 0);
  for (const Prefill& one : all)
    if (!one.unsupported.empty())
      text += fmt::format("unsupported: {} tokens, {} ranks, {}: {}\n", one.tokens, one.ranks, one.schedule,
                          one.unsupported);
  return text;
}

nlohmann::json to_json(const Prefill& one) {
  nlohmann::json json = {
      {"tokens", one.tokens}, {"ranks", one.ranks}, {"schedule", one.schedule}, {"layout", one.layout}};
  if (!one.unsupported.empty()) {
    json["unsupported"] = one.unsupported;
  } else {
    json["seconds"] = bench::to_json(one.seconds);
    json["tokens_per_second"] = one.tokens_per_second();
  }
  return json;
}

std::string to_csv(const std::vector<Prefill>& all) {
  std::string text = app::csv_line(
      {"tokens", "ranks", "schedule", "layout", "median_s", "min_s", "max_s", "repetitions", "tokens_per_s"});
  for (const Prefill& one : all)
    if (one.unsupported.empty())
      text +=
          app::csv_line({one.tokens, one.ranks, one.schedule, one.layout, one.seconds.median, one.seconds.min,
                         one.seconds.max, one.seconds.repetitions, one.tokens_per_second()});
  return text;
}

std::string to_html(const std::vector<Prefill>& all, const std::string& subtitle) {
  html::LineChart chart{.title = "time to the first token", .x_unit = "tokens of the prompt", .y_unit = "s"};
  html::Table table({{"tokens"},
                     {"ranks"},
                     {"schedule", html::Table::Align::text},
                     {"layout", html::Table::Align::text},
                     {"median"},
                     {"fastest"},
                     {"slowest"},
                     {"tokens/s"}});
  std::map<std::string, html::ChartLine> lines;
  for (const Prefill& one : all) {
    table.add(cells_of(one));
    if (!one.unsupported.empty()) continue;
    const std::string name = fmt::format("{} ranks, {}, {}", one.ranks, one.schedule, one.layout);
    lines[name].points.emplace_back(double(one.tokens), one.seconds.median);
  }
  std::vector<html::LegendKey> keys;
  for (auto& [name, line] : lines) {
    line.name = name;
    line.colour = html::series_colour(keys.size());
    std::ranges::sort(line.points);
    keys.push_back({line.colour, name});
    chart.lines.push_back(line);
  }
  std::string body = html::legend(keys);
  if (!chart.lines.empty()) body += html::figure(to_svg(chart));
  body += table.to_html();
  for (const Prefill& one : all)
    if (!one.unsupported.empty())
      body += html::element("p", fmt::format("Unsupported: {} tokens, {} ranks, {}: {}", one.tokens,
                                             one.ranks, one.schedule, one.unsupported));
  return html::to_text({.title = "prefill",
                        .heading = "Time to the first token",
                        .subtitle = subtitle,
                        .body = body,
                        .program = "annulus-eval"});
}

}  // namespace annulus::eval
