#include "bench/report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include <annulus/base/version.hpp>

#include "bench/report/columns.hpp"
#include "html/element.hpp"
#include "html/line_chart.hpp"
#include "html/page.hpp"
#include "html/table.hpp"

namespace annulus::bench {

using nlohmann::json;

namespace {

/// Cases of one line: the same schedule and layout.
using Series = std::map<std::string, std::vector<const json*>>;
/// Drawings by their title.
using Groups = std::map<std::string, Series>;

std::string title_of(const json& c, const std::string& length, const std::string& pass) {
  const json& o = c["config"];
  return fmt::format("{}, {}, {}, {} heads ({} kv) of {}, {}{}", pass, o["mask"].get<std::string>(), length,
                     o["heads"].get<int>(), o["kv_heads"].get<int>(), o["head_dim"].get<int>(),
                     o["dtype"].get<std::string>(), o["overlap"].get<bool>() ? "" : ", without overlap");
}

std::string name_of_line(const json& c) {
  return c["config"]["schedule"].get<std::string>() + ", " + c["config"]["layout"].get<std::string>();
}

/// Those that were run on several numbers of ranks.
Groups groups_of(const std::vector<json>& cases, const std::string& pass, bool weak) {
  Groups groups;
  for (const json& c : cases) {
    if (c[pass].is_null()) continue;
    const auto tokens = c["config"]["tokens"].get<std::int64_t>();
    const auto ranks = c["topology"]["ranks"].get<std::int64_t>();
    if (weak && tokens % ranks != 0) continue;
    const std::string length =
        weak ? fmt::format("{} tokens per rank", tokens / ranks) : fmt::format("{} tokens", tokens);
    groups[title_of(c, length, pass)][name_of_line(c)].push_back(&c);
  }
  const auto ranks_of = [](const json* c) { return (*c)["topology"]["ranks"].get<int>(); };
  for (auto& [title, series] : groups) {
    for (auto& [name, line] : series) {
      std::stable_sort(line.begin(), line.end(),
                       [&](const json* a, const json* b) { return ranks_of(a) < ranks_of(b); });
    }
    std::erase_if(series, [&](const auto& line) {
      return ranks_of(line.second.front()) == ranks_of(line.second.back());
    });
  }
  std::erase_if(groups, [](const auto& group) { return group.second.empty(); });
  return groups;
}

/// A number of a pass over the numbers of ranks.
struct Curve {
  std::string pass;
  const char* pointer;  ///< JSON pointer, from the pass on
  double factor;        ///< of the number
};

/// Nothing where no case has the number.
std::optional<html::Line> line_of(const Curve& curve, const std::vector<const json*>& cases) {
  html::Line line;
  const json::json_pointer at(curve.pointer);
  for (const json* c : cases) {
    const json& p = (*c)[curve.pass];
    if (!p.contains(at) || p.at(at).is_null()) continue;
    line.points.emplace_back((*c)["topology"]["ranks"].get<double>(), curve.factor * p.at(at).get<double>());
  }
  return line.points.empty() ? std::nullopt : std::optional(line);
}

std::string drawings(const Groups& groups, const std::string& pass) {
  const Curve measured{pass, "/seconds", 1e3}, predicted{pass, "/predicted/seconds", 1e3},
      efficiency{pass, "/efficiency", 1};
  std::string text;
  for (const auto& [title, series] : groups) {
    html::LineChart times{
        .title = "time of the pass", .x_unit = "ranks", .y_unit = "ms", .logarithmic = true, .lines = {}};
    html::LineChart efficiencies{.title = "efficiency against one rank",
                                 .x_unit = "ranks",
                                 .y_unit = "",
                                 .logarithmic = false,
                                 .lines = {}};
    std::vector<html::Key> keys;
    bool is_predicted = false;
    for (const auto& [name, cases] : series) {
      const html::Colour colour = html::series_colour(keys.size());
      keys.push_back({colour, name});
      const auto add = [&](html::LineChart& chart, const Curve& curve, const std::string& line_name,
                           bool dashed) {
        std::optional<html::Line> line = line_of(curve, cases);
        if (!line) return false;
        line->name = line_name;
        line->colour = colour;
        line->dashed = dashed;
        chart.lines.push_back(*std::move(line));
        return true;
      };
      add(times, measured, name, false);
      is_predicted = add(times, predicted, name + ", predicted", true) || is_predicted;
      add(efficiencies, efficiency, name, false);
    }
    text += html::element("h3", title);
    text += html::legend(keys, is_predicted ? "solid: measured; dashed: predicted" : "");
    text += html::figure_row(to_svg(times) + (efficiencies.lines.empty() ? "" : to_svg(efficiencies)));
  }
  return text;
}

std::string scaling(const std::vector<json>& cases, bool weak) {
  std::string text;
  for (const std::string pass : {"forward", "backward"}) text += drawings(groups_of(cases, pass, weak), pass);
  if (text.empty()) {
    return html::element(
        "p", weak ? "No schedule ran with the same tokens on each of several numbers of ranks "
                    "(--tokens-per-rank N --ranks 1 2 4)."
                  : "No schedule ran with the same tokens on several numbers of ranks (--ranks 1 2 4).");
  }
  return text;
}

std::string case_table(const std::vector<json>& cases) {
  std::vector<html::Table::Column> headings;
  for (const Column& column : columns()) {
    if (column.heading == nullptr) continue;
    headings.push_back({column.heading, column.form == Column::Form::text ? html::Table::Align::text
                                                                          : html::Table::Align::number});
  }
  html::Table table(std::move(headings));
  for_passes(cases, [&](const json& of_case, const std::string& pass) {
    std::vector<std::string> cells;
    for (const Column& column : columns()) {
      if (column.heading != nullptr) cells.push_back(text_of(column, value_of(column, of_case, pass)));
    }
    table.add(cells);
  });
  return table.to_html();
}

std::string unsupported_table(const std::vector<json>& unsupported) {
  if (unsupported.empty()) return "";
  using Align = html::Table::Align;
  html::Table table({{"schedule", Align::text},
                     {"layout", Align::text},
                     {"mask", Align::text},
                     {"tokens"},
                     {"ranks"},
                     {"reason", Align::prose}});
  for (const json& r : unsupported) {
    table.add({r["schedule"].get<std::string>(), r["layout"].get<std::string>(), r["mask"].get<std::string>(),
               fmt::format("{}", r["tokens"].get<std::int64_t>()), fmt::format("{}", r["ranks"].get<int>()),
               r["reason"].get<std::string>()});
  }
  return html::element("h2", "Unsupported") + table.to_html();
}

std::string machine_of(const std::vector<json>& cases) {
  std::set<std::string> machines;
  for (const json& c : cases) {
    const json& t = c["topology"];
    machines.insert(
        fmt::format("{}, {} {} thread{} per rank, attention kernel {}, {}", t["text"].get<std::string>(),
                    t["threads_per_rank"].get<int>(), t["execution_space"].get<std::string>(),
                    t["threads_per_rank"].get<int>() == 1 ? "" : "s", t.value("attention_kernel", "unknown"),
                    t["communicator"].get<std::string>()));
  }
  return fmt::format("{}", fmt::join(machines, "; "));
}

}  // namespace

std::string to_html(const std::vector<json>& cases, const std::vector<json>& unsupported) {
  const std::string body = html::element("h2", "Strong scaling") + scaling(cases, false) +
                           html::element("h2", "Weak scaling") + scaling(cases, true) +
                           html::element("h2", "All cases") + case_table(cases) +
                           unsupported_table(unsupported);
  return html::to_text({.title = "annulus-bench attention",
                        .heading = "Attention",
                        .subtitle = machine_of(cases),
                        .body = body,
                        .footer = fmt::format("annulus-bench {} ({}), measured", version(), git_hash())});
}

}  // namespace annulus::bench
