#include "bench/report/page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/units.hpp"
#include "bench/report/columns.hpp"
#include "html/charts.hpp"
#include "html/element.hpp"
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
  const json& o = c.at("config");
  return fmt::format("{}, {}, {}, {} heads ({} kv) of {}, {}{}", pass, o.at("mask").get<std::string>(),
                     length, o.at("heads").get<int>(), o.at("kv_heads").get<int>(),
                     o.at("head_dim").get<int>(), o.at("dtype").get<std::string>(),
                     o.at("overlap").get<bool>() ? "" : ", without overlap");
}

/// Lines that a case is a point of: its schedule and layout, and what was asked with auto where it became
/// them.
std::vector<std::string> names_of_lines(const json& c) {
  std::vector<std::string> names = {c.at("config").at("schedule").get<std::string>() + ", " +
                                    c.at("config").at("layout").get<std::string>()};
  std::istringstream asked(c.value("asked", ""));
  for (std::string name; std::getline(asked >> std::ws, name, ';');) names.push_back(name);
  return names;
}

/// Cases of a pass by title and line, of lines that were run on several numbers of ranks. `weak`: with as
/// many tokens per rank.
Groups groups_of(const std::vector<json>& cases, const std::string& pass, bool weak) {
  Groups groups;
  for (const json& c : cases) {
    if (c.at(pass).is_null()) continue;
    const auto tokens = c.at("config").at("tokens").get<std::int64_t>();
    const auto ranks = c.at("topology").at("ranks").get<std::int64_t>();
    if (weak && tokens % ranks != 0) continue;
    const std::string length =
        weak ? fmt::format("{} tokens per rank", tokens / ranks) : fmt::format("{} tokens", tokens);
    for (const std::string& name : names_of_lines(c)) groups[title_of(c, length, pass)][name].push_back(&c);
  }
  const auto ranks_of = [](const json* c) { return c->at("topology").at("ranks").get<int>(); };
  for (auto& [title, series] : groups) {
    for (auto& [name, line] : series) {
      std::ranges::stable_sort(line, {}, ranks_of);
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
  double factor = 1;    ///< of the number
};

/// Without points where no case has the number.
html::ChartLine line_of(const Curve& curve, const std::vector<const json*>& cases) {
  html::ChartLine line;
  const json::json_pointer at(curve.pointer);
  for (const json* c : cases) {
    const json& p = c->at(curve.pass);
    if (!p.contains(at) || p.at(at).is_null()) continue;
    line.points.emplace_back(c->at("topology").at("ranks").get<double>(),
                             curve.factor * p.at(at).get<double>());
  }
  return line;
}

std::string drawings(const Groups& groups, const std::string& pass, bool weak) {
  const Curve measured{pass, "/seconds", 1e3}, predicted{pass, "/predicted/seconds", 1e3},
      efficiency{pass, weak ? "/scaling/weak_efficiency" : "/scaling/strong_efficiency"},
      share{pass, "/local_kernel_share"};
  const auto chart = [](const char* title, const char* unit) {
    return html::LineChart{.title = title, .x_unit = "ranks", .y_unit = unit, .logarithmic = *unit != 0};
  };
  std::string text;
  for (const auto& [title, series] : groups) {
    html::LineChart times = chart("time of the pass", "ms"),
                    efficiencies = chart(
                        weak ? "weak-scaling efficiency of a rank" : "strong-scaling efficiency: T1 / (N TN)",
                        ""),
                    shares = chart("share of the local kernel's rate, all ranks busy", "");
    std::vector<html::LegendKey> keys;
    bool is_predicted = false, is_ideal = false;
    for (const auto& [name, cases] : series) {
      const html::Colour colour = html::series_colour(keys.size());
      keys.push_back({colour, name});
      const auto add = [&](html::LineChart& to, html::ChartLine line, const std::string& what) {
        if (line.points.empty()) return false;
        line.name = name + what;
        line.colour = colour;
        line.dashed = what == ", predicted";
        line.dotted = what == ", ideal";
        to.lines.push_back(std::move(line));
        return true;
      };
      const html::ChartLine seconds = line_of(measured, cases);
      html::ChartLine ideal = line_of(efficiency, cases);
      add(times, seconds, "");
      is_predicted = add(times, line_of(predicted, cases), ", predicted") || is_predicted;
      add(efficiencies, ideal, "");
      add(shares, line_of(share, cases), "");
      if (ideal.points.size() != seconds.points.size()) continue;  // one rank alone was not measured
      html::ChartLine one = ideal;
      for (std::size_t i = 0; i < ideal.points.size(); ++i) {
        ideal.points[i].second *= seconds.points[i].second;
        one.points[i].second = 1;
      }
      add(times, std::move(ideal), ", ideal");
      is_ideal = add(efficiencies, std::move(one), ", ideal");
    }
    text += html::element("h3", title);
    text += html::legend(keys, std::string("solid: measured") + (is_predicted ? "; dashed: predicted" : "") +
                                   (is_ideal ? "; dotted: ideal" : ""));
    if (!is_ideal)
      text += html::element(
          "p", fmt::format("No efficiency and no ideal: {} not measured in this run (--ranks 1 …).",
                           weak ? "one rank with these tokens was" : "T1 was"));
    const auto drawn = [](const html::LineChart& of) {
      return of.lines.empty() ? std::string() : to_svg(of);
    };
    text += html::figure_row(to_svg(times) + drawn(efficiencies) + drawn(shares));
  }
  return text;
}

std::string scaling(const std::vector<json>& cases, bool weak) {
  std::string text;
  for (const std::string pass : {"forward", "backward"})
    text += drawings(groups_of(cases, pass, weak), pass, weak);
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
  for (const ResultColumn& column : columns()) {
    if (column.heading == nullptr) continue;
    headings.push_back({column.heading, column.form == ResultColumn::Form::text
                                            ? html::Table::Align::text
                                            : html::Table::Align::number});
  }
  html::Table table(std::move(headings));
  for_passes(cases, [&](const json& of_case, const std::string& pass) {
    std::vector<std::string> cells;
    for (const ResultColumn& column : columns()) {
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
    table.add({r.at("schedule").get<std::string>(), r.at("layout").get<std::string>(),
               r.at("mask").get<std::string>(), fmt::format("{}", r.at("tokens").get<std::int64_t>()),
               fmt::format("{}", r.at("ranks").get<int>()), r.at("reason").get<std::string>()});
  }
  return html::element("h2", "Unsupported") + table.to_html();
}

std::string machine_of(const std::vector<json>& cases) {
  std::set<std::string> machines;
  for (const json& c : cases) {
    const json& t = c.at("topology");
    machines.insert(
        fmt::format("{}, {} {} thread{} per rank, attention kernel {}, {}", t.at("text").get<std::string>(),
                    t.at("threads_per_rank").get<int>(), t.at("execution_space").get<std::string>(),
                    t.at("threads_per_rank").get<int>() == 1 ? "" : "s",
                    t.value("attention_kernel", "unknown"), t.at("communicator").get<std::string>()));
  }
  return fmt::format("{}", fmt::join(machines, "; "));
}

/// All different values of what cases were run with, first and last where they are more than `most`.
std::string all_of(const std::vector<json>& cases, const char* pointer, std::size_t most) {
  std::vector<std::string> values;
  for (const json& c : cases) {
    const std::string value = c.value(json::json_pointer(pointer), std::string());
    if (!value.empty() && std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  if (values.size() <= most) return fmt::format("{}", fmt::join(values, "; "));
  return fmt::format("{} … {}", values.front(), values.back());
}

/// The fastest of the largest cases, and how fast.
std::string headline(const std::vector<json>& cases) {
  const auto size = [](const json& c) {
    return std::pair(c.at("topology").at("ranks").get<std::int64_t>(),
                     c.at("config").at("tokens").get<std::int64_t>());
  };
  const auto seconds = [](const json& c, const char* pass) {
    return c.at(pass).is_null() ? 0.0 : c.at(pass).at("seconds").get<double>();
  };
  if (cases.empty()) return "Attention";
  const json* best = &cases.front();
  std::size_t others = 0;
  for (const json& c : cases) {
    const json &of = c.at("config"), &first = best->at("config");
    if (size(c) < size(*best)) continue;
    const bool larger = size(c) > size(*best);
    // Other masks and shapes are other work.
    if (!larger && (of.at("mask") != first.at("mask") || of.at("heads") != first.at("heads") ||
                    of.at("dtype") != first.at("dtype")))
      continue;
    others = larger ? 1 : others + 1;
    if (larger || seconds(c, "forward") + seconds(c, "backward") <
                      seconds(*best, "forward") + seconds(*best, "backward"))
      best = &c;
  }
  const json& o = best->at("config");
  const auto [ranks, tokens] = size(*best);
  std::string text = fmt::format("{} on {} ranks, layout {}: ", o.at("schedule").get<std::string>(), ranks,
                                 o.at("layout").get<std::string>());
  if (!best->at("forward").is_null())
    text += fmt::format("{} forward", duration_text(seconds(*best, "forward")));
  if (!best->at("backward").is_null())
    text += fmt::format(", {} backward", duration_text(seconds(*best, "backward")));
  text += fmt::format(" ({}, {} tokens, {})", o.at("mask").get<std::string>(), tokens,
                      o.at("dtype").get<std::string>());
  return others > 1 ? text + fmt::format(", the fastest of {}", others) : text;
}

/// Where, when and how it was run, and a warning where ranks shared cores.
std::string run_of(const std::vector<json>& cases) {
  std::vector<std::pair<std::string, std::string>> facts;
  for (const auto& [name, pointer] :
       {std::pair("date", "/run/date"), std::pair("host of rank 0", "/run/host"),
        std::pair("command", "/run/command")})
    if (const std::string value = all_of(cases, pointer, std::string_view(name) == "date" ? 1 : 4);
        !value.empty())
      facts.emplace_back(name, value);
  const bool shared = std::ranges::any_of(cases, [](const json& c) {
    return c.value(json::json_pointer("/run/more_threads_than_cores"), false);
  });
  return html::facts(facts) +
         (shared ? html::element("p",
                                 "Warning: ranks had more threads than their machine has cores. Their times "
                                 "are those of ranks that wait for one another's cores.")
                 : "");
}

}  // namespace

std::string to_html(const std::vector<json>& cases, const std::vector<json>& unsupported) {
  const std::string body = run_of(cases) + html::element("h2", "Strong scaling") + scaling(cases, false) +
                           html::element("h2", "Weak scaling") + scaling(cases, true) +
                           html::element("h2", "All cases") + case_table(cases) +
                           unsupported_table(unsupported);
  return html::to_text({.title = "annulus-bench attention",
                        .heading = headline(cases),
                        .subtitle = machine_of(cases),
                        .body = body,
                        .program = "measured by annulus-bench"});
}

}  // namespace annulus::bench
