#include "eval/perplexity_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/printable.hpp"
#include "base/units.hpp"
#include "common/output/csv.hpp"
#include "common/text.hpp"
#include "eval/evaluation/options.hpp"
#include "html/charts.hpp"
#include "html/element.hpp"
#include "html/heat_map.hpp"
#include "html/page.hpp"
#include "html/table.hpp"

namespace annulus::eval {

namespace {

using Bucket = training::ValidationLoss::Bucket;

/// Calls use(from, bucket) for the buckets of an evaluation.
template <class Use>
void for_buckets(const Perplexity& one, const Use& use) {
  std::int64_t from = 0;
  for (const Bucket& bucket : one.loss.by_position) {
    use(from, bucket);
    from = bucket.up_to;
  }
}

double tokens_per_second(const Perplexity& one) {
  return one.seconds > 0 ? double(one.windows) * double(one.tokens) / one.seconds : 0;
}

/// Losses by position, (buckets, evaluations), under a heading for each; buckets that one alone has stay
/// empty in the others.
std::vector<std::vector<std::string>> rows_by_position(const std::vector<Perplexity>& all) {
  std::map<std::int64_t, std::pair<std::int64_t, std::vector<std::string>>> by_end;  // (from, cells)
  for (std::size_t i = 0; i < all.size(); ++i)
    for_buckets(all[i], [&](std::int64_t from, const Bucket& bucket) {
      auto& [first, cells] =
          by_end.try_emplace(bucket.up_to, from, std::vector<std::string>(all.size(), "–")).first->second;
      first = std::max(first, from);
      cells[i] = fmt::format("{:.4f}", bucket.loss);
    });
  std::vector<std::vector<std::string>> rows;
  for (auto& [up_to, row] : by_end) {
    auto& [from, cells] = row;
    cells.insert(cells.begin(), bucket_text(from, up_to));
    rows.push_back(std::move(cells));
  }
  return rows;
}

std::string summary_table(const std::vector<Perplexity>& all) {
  using enum html::Table::Align;
  html::Table table({{"model", text},
                     {"attention", text},
                     {"loss"},
                     {"perplexity"},
                     {"scored tokens"},
                     {"windows"},
                     {"tokens each"},
                     {"stride"},
                     {"optimizer steps"},
                     {"tokens/s"},
                     {"computed by", prose}});
  for (const Perplexity& one : all)
    table.add({one.model, attention_text(one), fmt::format("{:.4f}", one.loss.loss),
               fmt::format("{:.3f}", perplexity(one.loss.loss)), fmt::format("{}", one.loss.targets),
               fmt::format("{}", one.windows), fmt::format("{}", one.tokens), fmt::format("{}", one.stride),
               one.step > 0 ? fmt::format("{}", one.step) : "–",
               fmt::format("{:.0f}", tokens_per_second(one)),
               fmt::format("{} ranks, {}", one.ranks, one.device)});
  return table.to_html();
}

/// Losses of models by ways of attention; nothing where there are not several of both.
std::string matrix(const std::vector<Perplexity>& all) {
  html::HeatMap map{.title = "loss of models by the attention of the evaluation",
                    .unit = "nats per token",
                    .row_name = "model",
                    .column_name = "attention of the evaluation",
                    .least = INFINITY,
                    .most = -INFINITY,
                    .digits = 4};
  std::vector<html::HeatMapCell> cells;
  for (const Perplexity& one : all) cells.push_back({one.model, attention_text(one), one.loss.loss});
  set_cells(map, cells);
  if (map.rows.size() < 2 || map.columns.size() < 2) return "";
  for (const html::HeatMapCell& cell : cells) {
    map.least = std::min(map.least, cell.value);
    map.most = std::max(map.most, cell.value);
  }
  if (map.most <= map.least) map.most = map.least + 1;
  return html::figure(to_svg(map));
}

}  // namespace

double perplexity(double loss) {
  return std::exp(loss);
}

std::string bucket_text(std::int64_t from, std::int64_t up_to) {
  return fmt::format("{}–{}", from, up_to - 1);
}

std::string to_table(const std::vector<Perplexity>& all) {
  std::string text;
  const std::vector<std::string> names = names_of(all);
  std::vector<std::string> heading{"tokens before"};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Perplexity& one = all[i];
    if (all.size() > 1) text += fmt::format("({}) ", i + 1);
    text += fmt::format(
        "{}: loss {:.4f}, perplexity {:.3f}; {} tokens scored in {} windows of {}, {} ({:.0f} tokens/s)\n",
        printable(names[i]), one.loss.loss, perplexity(one.loss.loss), one.loss.targets, one.windows,
        one.tokens, duration_text(one.seconds), tokens_per_second(one));
    heading.push_back(all.size() > 1 ? fmt::format("({})", i + 1) : "loss");
  }
  std::vector<std::vector<std::string>> rows = rows_by_position(all);
  rows.insert(rows.begin(), std::move(heading));
  return text + app::table_text(rows);
}

nlohmann::json to_json(const Perplexity& one) {
  nlohmann::json buckets = nlohmann::json::array();
  for_buckets(one, [&](std::int64_t from, const Bucket& bucket) {
    buckets.push_back({{"from", from},
                       {"up_to", bucket.up_to},
                       {"loss", bucket.loss},
                       {"perplexity", perplexity(bucket.loss)},
                       {"targets", bucket.targets}});
  });
  return {{"model", one.model},
          {"step", one.step},
          {"sparsity", one.attention},
          {"mask", one.mask},
          {"schedule", one.schedule},
          {"layout", one.layout},
          {"dtype", one.dtype},
          {"device", one.device},
          {"ranks", one.ranks},
          {"context", one.context},
          {"length", one.tokens},
          {"stride", one.stride},
          {"windows", one.windows},
          {"loss", one.loss.loss},
          {"perplexity", perplexity(one.loss.loss)},
          {"targets", one.loss.targets},
          {"by_position", buckets},
          {"seconds", one.seconds},
          {"tokens_per_second", tokens_per_second(one)}};
}

std::string to_csv(const std::vector<Perplexity>& all) {
  std::string text = app::csv_line({"model", "sparsity", "length", "stride", "before_from", "before_up_to",
                                    "targets", "loss", "perplexity"});
  for (const Perplexity& one : all) {
    const auto line = [&](const nlohmann::json& from, const nlohmann::json& up_to, std::int64_t targets,
                          double loss) {
      text += app::csv_line(
          {one.model, one.attention, one.tokens, one.stride, from, up_to, targets, loss, perplexity(loss)});
    };
    line(nullptr, nullptr, one.loss.targets, one.loss.loss);
    for_buckets(one, [&](std::int64_t from, const Bucket& bucket) {
      line(from, bucket.up_to, bucket.targets, bucket.loss);
    });
  }
  return text;
}

std::string to_html(const std::vector<Perplexity>& all, const std::string& subtitle) {
  const std::vector<std::string> names = names_of(all);
  html::LineChart chart{.title = "loss by position",
                        .x_unit = "tokens of the document before, up to",
                        .y_unit = "nats per token"};
  std::vector<html::LegendKey> keys;
  for (std::size_t i = 0; i < all.size(); ++i) {
    html::ChartLine line{.name = names[i], .colour = html::series_colour(i), .points = {}};
    for_buckets(all[i], [&](std::int64_t, const Bucket& bucket) {
      line.points.emplace_back(double(bucket.up_to), bucket.loss);
      if (!(bucket.loss > 0)) chart.logarithmic = false;
    });
    keys.push_back({line.colour, names[i]});
    if (!line.points.empty()) chart.lines.push_back(std::move(line));
  }
  std::string body = summary_table(all) + matrix(all) + html::legend(keys);
  if (!chart.lines.empty()) body += html::figure(to_svg(chart));
  std::vector<html::Table::Column> columns{{"tokens before", html::Table::Align::text}};
  for (const std::string& name : names) columns.push_back({name});
  html::Table table(columns);
  for (const std::vector<std::string>& row : rows_by_position(all)) table.add(row);
  body += html::element("h2", "Loss by position, nats per token") + table.to_html();
  return html::to_text({.title = "perplexity",
                        .heading = "Perplexity and loss by position",
                        .subtitle = subtitle,
                        .body = body,
                        .program = "annulus-eval"});
}

}  // namespace annulus::eval
