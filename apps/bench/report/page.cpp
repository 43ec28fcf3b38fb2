#include "bench/report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include <annulus/base/version.hpp>

#include "bench/report/columns.hpp"
#include "bench/report/line_chart.hpp"
#include "common/html.hpp"

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
        weak ? fmt::format("{} tokens a rank", tokens / ranks) : fmt::format("{} tokens", tokens);
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

std::optional<Line> line_of(const std::string& name, const std::vector<const json*>& cases,
                            const std::string& pass, const char* pointer, double factor, std::size_t colour,
                            bool dashed) {
  Line line{name, colour, dashed, {}};
  for (const json* c : cases) {
    const json& p = (*c)[pass];
    const json::json_pointer at(pointer);
    if (!p.contains(at) || p.at(at).is_null()) continue;
    line.points.emplace_back((*c)["topology"]["ranks"].get<double>(), factor * p.at(at).get<double>());
  }
  return line.points.empty() ? std::nullopt : std::optional(line);
}

std::string drawings(const Groups& groups, const std::string& pass) {
  std::string text;
  for (const auto& [title, series] : groups) {
    std::vector<Line> times, efficiencies;
    std::string key;
    std::size_t colour = 0;
    bool predicted = false;
    for (const auto& [name, cases] : series) {
      if (auto line = line_of(name, cases, pass, "/seconds", 1e3, colour, false)) times.push_back(*line);
      if (auto line = line_of(name + ", predicted", cases, pass, "/predicted/seconds", 1e3, colour, true)) {
        times.push_back(*line);
        predicted = true;
      }
      if (auto line = line_of(name, cases, pass, "/efficiency", 1, colour, false))
        efficiencies.push_back(*line);
      key += fmt::format("<span class=\"key\"><i style=\"background:{}\"></i>{}</span>\n", colour_of(colour),
                         app::escaped(name));
      ++colour;
    }
    text += fmt::format(
        "<h3>{}</h3>\n<div>{}{}</div>\n<figure class=\"row\">\n{}{}</figure>\n", app::escaped(title), key,
        predicted ? "<span class=\"key\">solid: measured; dashed: predicted</span>\n" : "",
        line_chart("time of the pass", "ms", times, true),
        efficiencies.empty() ? "" : line_chart("efficiency against one rank", "", efficiencies, false));
  }
  return text;
}

std::string scaling(const std::vector<json>& cases, bool weak) {
  std::string text;
  for (const std::string pass : {"forward", "backward"}) text += drawings(groups_of(cases, pass, weak), pass);
  if (text.empty()) {
    text = weak
               ? "<p>No schedule ran with the same tokens on each of several numbers of ranks "
                 "(--tokens-per-rank N --ranks 1 2 4).</p>\n"
               : "<p>No schedule ran with the same tokens on several numbers of ranks (--ranks 1 2 4).</p>\n";
  }
  return text;
}

std::string case_table(const std::vector<json>& cases) {
  std::string text = "<table>\n<tr>";
  const auto cell = [&](const char* tag, const std::string& value) {
    fmt::format_to(std::back_inserter(text), "<{0}>{1}</{0}>", tag, app::escaped(value));
  };
  for (const Column& column : columns()) {
    if (column.heading != nullptr) cell("th", column.heading);
  }
  text += "</tr>\n";
  for_passes(cases, [&](const json& of_case, const std::string& pass) {
    text += "<tr>";
    for (const Column& column : columns()) {
      if (column.heading != nullptr) cell("td", text_of(column, value_of(column, of_case, pass)));
    }
    text += "</tr>\n";
  });
  return text + "</table>\n";
}

std::string unsupported_table(const std::vector<json>& unsupported) {
  if (unsupported.empty()) return "";
  std::string text =
      "<h2>Unsupported</h2>\n<table>\n<tr><th>schedule</th><th>layout</th><th>mask</th><th>tokens</th>"
      "<th>ranks</th><th>reason</th></tr>\n";
  for (const json& r : unsupported) {
    fmt::format_to(
        std::back_inserter(text),
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td></tr>\n",
        app::escaped(r["schedule"].get<std::string>()), app::escaped(r["layout"].get<std::string>()),
        app::escaped(r["mask"].get<std::string>()), r["tokens"].get<std::int64_t>(), r["ranks"].get<int>(),
        app::escaped(r["reason"].get<std::string>()));
  }
  return text + "</table>\n";
}

std::string machine_of(const std::vector<json>& cases) {
  std::set<std::string> machines;
  for (const json& c : cases) {
    const json& t = c["topology"];
    machines.insert(
        fmt::format("{}, {} {} threads a rank, attention kernel {}, {}", t["text"].get<std::string>(),
                    t["threads_per_rank"].get<int>(), t["execution_space"].get<std::string>(),
                    t.value("attention_kernel", "unknown"), t["communicator"].get<std::string>()));
  }
  return app::escaped(fmt::format("{}", fmt::join(machines, "; ")));
}

}  // namespace

std::string to_html(const std::vector<json>& cases, const std::vector<json>& unsupported) {
  const std::string body = fmt::format(
      "<h1>Attention</h1>\n<p class=\"case\">{}</p>\n<h2>Strong scaling</h2>\n{}<h2>Weak scaling</h2>\n{}"
      "<h2>All cases</h2>\n<figure>\n{}</figure>\n{}",
      machine_of(cases), scaling(cases, false), scaling(cases, true), case_table(cases),
      unsupported_table(unsupported));
  return app::html_page("annulus-bench attention", body,
                        fmt::format("annulus-bench {} ({}), measured", version(), git_hash()));
}

}  // namespace annulus::bench
