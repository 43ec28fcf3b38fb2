#include "html/stacked_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "html/axis.hpp"
#include "html/element.hpp"

namespace annulus::html {

namespace {

// Pixels.
constexpr double chart_width = 860, chart_height = 340, chart_left = 62, chart_right = 16, chart_top = 34,
                 chart_bottom = 24;

}  // namespace

std::string to_svg(const StackedChart& chart) {
  const std::size_t columns = chart.columns.size();
  std::vector<double> heights(columns, 0);
  for (const Layer& layer : chart.layers)
    for (std::size_t i = 0; i < columns; ++i) heights[i] += layer.values[i];
  double most = 0;
  for (const double height : heights) most = std::max(most, height);
  for (const double value : chart.line) most = std::max(most, value);
  const Axis y{0, most > 0 ? 1.08 * most : 1, chart_height - chart_bottom, chart_top, false};
  const double step = (chart_width - chart_left - chart_right) / double(std::max<std::size_t>(1, columns));

  std::string text;
  const auto put = [&](std::string_view piece) { text += piece; };
  put(
      fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0:.0f}\" "
                  "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<title>{2}</title>\n<text "
                  "class=\"title\" x=\"4\" y=\"16\">{2}</text>\n",
                  chart_width, chart_height, escaped(fmt::format("{} ({})", chart.title, chart.unit))));
  for (const double tick : linear_ticks(y.max))
    put(
        fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text "
                    "class=\"label\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5:.4g}</text>\n",
                    chart_left, chart_width - chart_right, y(tick), chart_left - 8, y(tick) + 3.5, tick));
  std::vector<double> below(columns, 0);
  for (const Layer& layer : chart.layers) {
    put(fmt::format("<g class=\"{}\">\n", class_of(layer.colour)));
    for (std::size_t i = 0; i < columns; ++i) {
      const double value = layer.values[i];
      if (value <= 0) continue;
      const double top = y(below[i] + value);
      put(
          fmt::format("<rect fill=\"currentColor\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
                      "height=\"{:.2f}\"><title>{}, {}: {:.4g} {}; all: {:.4g} {}</title></rect>\n",
                      chart_left + double(i) * step, top, step, y(below[i]) - top, escaped(chart.columns[i]),
                      escaped(layer.name), value, escaped(chart.unit), heights[i], escaped(chart.unit)));
      below[i] += value;
    }
    put("</g>\n");
  }
  if (!chart.line.empty()) {
    std::string points;
    for (std::size_t i = 0; i < columns; ++i)
      fmt::format_to(std::back_inserter(points), "{0:.1f},{2:.1f} {1:.1f},{2:.1f} ",
                     chart_left + double(i) * step, chart_left + double(i + 1) * step, y(chart.line[i]));
    put(fmt::format(
        "<g class=\"{}\">\n<polyline class=\"line\" points=\"{}\"><title>{}</title></polyline>\n</g>\n",
        class_of(Colour::grey), points, escaped(chart.line_name)));
  }
  return text + "</svg>\n";
}

}  // namespace annulus::html
