#include "eval/retrieval_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.hpp"
#include "base/units.hpp"
#include "common/output/csv.hpp"
#include "common/text.hpp"
#include "eval/evaluation/options.hpp"
#include "html/element.hpp"
#include "html/heat_map.hpp"
#include "html/page.hpp"
#include "html/table.hpp"

namespace annulus::eval {

namespace {

/// Values of cells, each once, in the order in which they come.
template <class Value, class Of>
std::vector<Value> distinct(const std::vector<RetrievalCell>& cells, const Of& of) {
  std::vector<Value> values;
  for (const RetrievalCell& cell : cells)
    if (std::ranges::find(values, of(cell)) == values.end()) values.push_back(of(cell));
  return values;
}
std::vector<std::string> kinds_of(const std::vector<RetrievalCell>& cells) {
  return distinct<std::string>(cells, [](const RetrievalCell& cell) { return cell.kind; });
}
std::vector<std::int64_t> lengths_of(const std::vector<RetrievalCell>& cells) {
  return distinct<std::int64_t>(cells, [](const RetrievalCell& cell) { return cell.tokens; });
}

nlohmann::json depth_json(const std::optional<double>& depth) {
  return depth ? nlohmann::json(*depth) : nlohmann::json();
}
std::string percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

/// Scores in percent of cells, in columns by length and rows by what `row_of` says.
template <class RowOf>
html::HeatMap score_map(const std::vector<RetrievalCell>& cells, std::string title, std::string row_name,
                        const RowOf& row_of) {
  html::HeatMap map{.title = std::move(title),
                    .unit = "%",
                    .row_name = std::move(row_name),
                    .column_name = "tokens",
                    .most = 100,
                    .digits = 0};
  std::vector<html::HeatMapCell> scores;
  for (const RetrievalCell& cell : cells)
    scores.push_back({row_of(cell), fmt::format("{}", cell.tokens), 100 * cell.score()});
  set_cells(map, scores);
  return map;
}

/// Heat maps of one model.
std::string maps_of(const Retrieval& one) {
  std::string body = html::figure(to_svg(score_map(cells_of(one, false), "samples answered, by kind", "kind",
                                                   [](const RetrievalCell& cell) { return cell.kind; })));
  const std::vector<RetrievalCell> cells = cells_of(one, true);
  for (const std::string& kind : kinds_of(cells)) {
    std::vector<RetrievalCell> of_kind;
    std::ranges::copy_if(cells, std::back_inserter(of_kind), [&](const RetrievalCell& cell) {
      return cell.kind == kind && cell.depth.has_value();
    });
    if (of_kind.empty()) continue;
    std::ranges::stable_sort(of_kind, {}, [](const RetrievalCell& cell) { return *cell.depth; });
    const auto map = score_map(of_kind, fmt::format("samples of kind {} answered, by depth", kind), "depth",
                               [](const RetrievalCell& cell) { return percent(*cell.depth); });
    body += html::figure(to_svg(map));
  }
  return body;
}

std::string table_of(const std::vector<Retrieval>& all) {
  using enum html::Table::Align;
  html::Table table({{"model", text},
                     {"attention", text},
                     {"kind", text},
                     {"tokens"},
                     {"samples"},
                     {"answered"},
                     {"loss of answers, nats per token"},
                     {"computed by", prose}});
  for (const Retrieval& one : all)
    for (const RetrievalCell& cell : cells_of(one, false))
      table.add({one.model, attention_text(one), cell.kind, fmt::format("{}", cell.tokens),
                 fmt::format("{}", cell.samples), percent(cell.score()), fmt::format("{:.4f}", cell.loss),
                 fmt::format("{} ranks, {}", one.ranks, one.device)});
  return table.to_html();
}

}  // namespace

std::vector<RetrievalCell> cells_of(const Retrieval& one, bool by_depth) {
  std::vector<RetrievalCell> cells;
  std::vector<std::int64_t> answer_tokens;
  for (const AnsweredSample& sample : one.samples) {
    const auto depth = by_depth ? sample.facts.depth : std::nullopt;
    auto cell = std::ranges::find_if(cells, [&](const RetrievalCell& c) {
      return c.kind == sample.facts.kind && c.tokens == sample.tokens && c.depth == depth;
    });
    const auto index = static_cast<std::size_t>(cell - cells.begin());
    if (cell == cells.end()) {
      cells.push_back({.kind = sample.facts.kind, .tokens = sample.tokens, .depth = depth});
      answer_tokens.push_back(0);
    }
    RetrievalCell& of = cells[index];
    ++of.samples;
    of.correct += sample.correct ? 1 : 0;
    of.loss += sample.loss;
    answer_tokens[index] += sample.answer_tokens;
  }
  for (std::size_t i = 0; i < cells.size(); ++i) cells[i].loss /= double(answer_tokens[i]);
  return cells;
}

std::string to_table(const std::vector<Retrieval>& all) {
  const std::vector<std::string> names = names_of(all);
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<RetrievalCell> cells = cells_of(all[i], false);
    const std::vector<std::int64_t> lengths = lengths_of(cells);
    std::vector<std::vector<std::string>> rows{{"answered of"}};
    for (const std::int64_t length : lengths) rows.front().push_back(fmt::format("{}", length));
    for (const std::string& kind : kinds_of(cells)) {
      std::vector<std::string>& row = rows.emplace_back(1, printable(kind));
      for (const std::int64_t length : lengths) {
        const auto cell = std::ranges::find_if(
            cells, [&](const RetrievalCell& c) { return c.kind == kind && c.tokens == length; });
        row.push_back(cell == cells.end() ? "–" : fmt::format("{}/{}", cell->correct, cell->samples));
      }
    }
    text +=
        fmt::format("{} ({})\n{}", printable(names[i]), duration_text(all[i].seconds), app::table_text(rows));
  }
  return text;
}

nlohmann::json to_json(const Retrieval& one) {
  nlohmann::json cells = nlohmann::json::array(), samples = nlohmann::json::array();
  for (const RetrievalCell& cell : cells_of(one, true))
    cells.push_back({{"kind", cell.kind},
                     {"tokens", cell.tokens},
                     {"depth", depth_json(cell.depth)},
                     {"samples", cell.samples},
                     {"correct", cell.correct},
                     {"score", cell.score()},
                     {"loss", cell.loss}});
  for (const AnsweredSample& sample : one.samples)
    samples.push_back({{"kind", sample.facts.kind},
                       {"tokens", sample.tokens},
                       {"depth", depth_json(sample.facts.depth)},
                       {"answer", sample.facts.answer},
                       {"correct", sample.correct},
                       {"answer_tokens", sample.answer_tokens},
                       {"loss", sample.loss / double(sample.answer_tokens)}});
  return {{"model", one.model}, {"step", one.step},      {"sparsity", one.attention}, {"mask", one.mask},
          {"dtype", one.dtype}, {"device", one.device},  {"ranks", one.ranks},        {"cells", cells},
          {"samples", samples}, {"seconds", one.seconds}};
}

std::string to_csv(const std::vector<Retrieval>& all) {
  std::string text =
      app::csv_line({"model", "sparsity", "kind", "tokens", "depth", "samples", "correct", "score", "loss"});
  for (const Retrieval& one : all)
    for (const RetrievalCell& cell : cells_of(one, true))
      text += app::csv_line({one.model, one.attention, cell.kind, cell.tokens, depth_json(cell.depth),
                             cell.samples, cell.correct, cell.score(), cell.loss});
  return text;
}

std::string to_html(const std::vector<Retrieval>& all, const std::string& subtitle) {
  const std::vector<std::string> names = names_of(all);
  std::string body = table_of(all);
  for (std::size_t i = 0; i < all.size(); ++i) body += html::element("h2", names[i]) + maps_of(all[i]);
  return html::to_text({.title = "retrieval",
                        .heading = "Retrieval: samples answered exactly by greedy decoding",
                        .subtitle = subtitle,
                        .body = body,
                        .program = "annulus-eval"});
}

}  // namespace annulus::eval
