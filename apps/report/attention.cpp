#include "attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "html/charts.hpp"
#include "html/element.hpp"
#include "html/heat_map.hpp"

namespace annulus::report {

namespace {

/// A number of each head.
struct Quantity {
  std::string name, meaning, unit;
  std::vector<double> AuditedLayer::*of_heads;
  bool of_selections;  ///< 1 in layers that take all pairs
  html::Colour colour;
};

const std::vector<Quantity>& quantities() {
  using enum html::Colour;
  static const std::vector<Quantity> all{
      {"density", "share of the pairs that a head selects", "", &AuditedLayer::density, true, blue},
      {"recall", "share of the probability that the selected pairs hold", "", &AuditedLayer::recall, true,
       teal},
      {"gradient recall", "share of |dS| that the selected pairs hold", "", &AuditedLayer::gradient_recall,
       true, purple},
      {"entropy", "how far a query spreads its attention", "nats", &AuditedLayer::entropy, false, orange},
      {"gradient", "sum of |dS| over the keys of a query", "nats", &AuditedLayer::gradient, false, red}};
  return all;
}

/// Lowest, mean and highest of all heads of all layers over optimizer steps.
std::string curves(const Quantity& quantity, const std::vector<AuditRecord>& audits) {
  html::SeriesChart chart{.title = fmt::format("{} of heads, {}", quantity.name, quantity.meaning),
                          .x_unit = "optimizer steps",
                          .y_unit = quantity.unit};
  html::Series lowest{.name = "lowest head", .colour = html::Colour::sky},
      mean{.name = "mean of all heads", .colour = html::Colour::blue},
      highest{.name = "highest head", .colour = html::Colour::grey};
  for (const AuditRecord& audit : audits) {
    double least = INFINITY, most = -INFINITY, sum = 0, count = 0;
    for (const AuditedLayer& layer : audit.layers) {
      for (const double value : layer.*quantity.of_heads) {
        if (!std::isfinite(value)) continue;
        least = std::min(least, value);
        most = std::max(most, value);
        sum += value;
        ++count;
      }
    }
    if (count == 0) continue;
    const auto step = double(audit.step);
    lowest.points.emplace_back(step, least);
    mean.points.emplace_back(step, sum / count);
    highest.points.emplace_back(step, most);
  }
  chart.series = {lowest, highest, mean};
  return mean.points.size() > 1 ? html::figure(to_svg(chart)) : "";
}

std::string by_layer_and_head(const Quantity& quantity, const AuditRecord& audit) {
  html::HeatMap map{.title = fmt::format("{}, step {}", quantity.name, audit.step),
                    .unit = quantity.unit,
                    .row_name = "layer",
                    .column_name = "head",
                    .digits = 3,
                    .colour = quantity.colour};
  double largest = 0;
  std::vector<html::HeatMapCell> cells;
  for (const AuditedLayer& layer : audit.layers) {
    const std::vector<double>& heads = layer.*quantity.of_heads;
    for (std::size_t head = 0; head < heads.size(); ++head) {
      cells.push_back({fmt::format("{}", layer.layer), fmt::format("{}", head), heads[head]});
      if (std::isfinite(heads[head])) largest = std::max(largest, heads[head]);
    }
  }
  set_cells(map, cells);
  if (!quantity.of_selections && largest > 0) map.most = largest;
  // Three digits of the largest.
  if (largest > 0) map.digits = std::clamp(3 - static_cast<int>(std::ceil(std::log10(largest))), 0, 12);
  return to_svg(map);
}

/// Blocks over three orders of magnitude.
std::string picture(std::string title, const std::vector<std::vector<double>>& shares, std::int64_t block,
                    html::Colour colour) {
  constexpr double decades = 3;
  constexpr std::size_t named = 8;  // every so many rows and columns
  html::HeatMap map{.title = std::move(title),
                    .row_name = "query",
                    .column_name = "key (position)",
                    .picture = true,
                    .colour = colour};
  double largest = 0;
  for (const std::vector<double>& row : shares)
    for (const double share : row)
      if (std::isfinite(share)) largest = std::max(largest, share);
  for (std::size_t row = 0; row < shares.size(); ++row) {
    map.rows.push_back(row % named == 0 ? fmt::format("{}", std::int64_t(row) * block) : "");
    for (const double share : shares[row])
      map.values.push_back(share > 0 ? std::log10(share / largest) : unknown);
  }
  map.columns = map.rows;
  map.least = -decades;
  map.most = 0;
  return to_svg(map);
}

/// Weights beside gradients, of some layers that are spread over the model.
std::string pictures(const AuditRecord& audit) {
  constexpr std::size_t most_layers = 4;
  std::string html;
  const std::size_t layers = audit.layers.size(), count = std::min(layers, most_layers);
  for (std::size_t i = 0; i < count; ++i) {
    const AuditedLayer& layer = audit.layers[count > 1 ? i * (layers - 1) / (count - 1) : 0];
    const auto& [head, block, weights, gradients] = layer.pattern;
    if (weights.empty()) continue;
    const std::string of = fmt::format("step {}, layer {}, head {}", audit.step, layer.layer, head);
    html += html::figure_row(picture("weights P, " + of, weights, block, html::Colour::orange) +
                             picture("gradients |dS|, " + of, gradients, block, html::Colour::red));
  }
  return html;
}

}  // namespace

std::string attention_figures(const RunRecord& run) {
  const auto selects = [](const AuditRecord& audit) {
    return std::ranges::any_of(audit.layers, &AuditedLayer::selects);
  };
  const bool any = std::ranges::any_of(run.audits, selects);
  const AuditRecord& last = run.audits.back();
  std::string over_steps, by_head;
  for (const Quantity& quantity : quantities()) {
    if (quantity.of_selections && !any) continue;
    over_steps += curves(quantity, run.audits);
    by_head += by_layer_and_head(quantity, last);
  }
  if (!over_steps.empty())
    over_steps = html::legend({{html::Colour::sky, "lowest head of all layers"},
                               {html::Colour::blue, "mean of all heads"},
                               {html::Colour::grey, "highest head"}}) +
                 over_steps;
  std::string html = over_steps + html::figure_row(by_head);
  html += html::element("p",
                        "Where weights P and gradients |dS| lie: rows are blocks of queries, columns blocks "
                        "of keys. The largest "
                        "sum of a block has the full colour; sums of a thousandth of it and less have none, "
                        "and colours between "
                        "follow the logarithm.");
  if (run.audits.size() > 1) html += pictures(run.audits.front());
  return html + pictures(last);
}

}  // namespace annulus::report
