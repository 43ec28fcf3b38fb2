#include "html/line_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "html/axis.hpp"
#include "html/element.hpp"

namespace annulus::html {

namespace {

// Pixels.
constexpr double width = 460, height = 300, left = 62, right = 16, top = 34, bottom = 40;

class ChartDrawing {
 public:
  explicit ChartDrawing(const LineChart& chart) : chart_(chart) {
    double min = INFINITY, max = 0;
    for (const Line& line : chart.lines) {
      for (const auto& [x, y] : line.points) {
        xs_.insert(x);
        min = std::min(min, y);
        max = std::max(max, y);
      }
    }
    x_ = {*xs_.begin(), *xs_.rbegin(), left + 14, width - right - 14, true};
    y_ = {chart.logarithmic ? min / 1.15 : 0, (chart.logarithmic ? 1.15 : 1.08) * max, height - bottom, top,
          chart.logarithmic};
  }

  std::string draw() {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<title>{2}</title>\n<text class=\"title\" x=\"4\" "
        "y=\"16\">{2}</text>\n",
        width, height,
        escaped(chart_.y_unit.empty() ? chart_.title : fmt::format("{} ({})", chart_.title, chart_.y_unit)));
    draw_grid();
    for (const Line& line : chart_.lines) draw_line(line);
    return text_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), text, std::forward<Args>(args)...);
  }

  void draw_grid() {
    for (const double tick : y_.logarithmic ? logarithmic_ticks(y_.min, y_.max) : linear_ticks(y_.max)) {
      put("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text "
          "class=\"label\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5:.4g}</text>\n",
          left, width - right, y_(tick), left - 8, y_(tick) + 3.5, tick);
    }
    for (const double x : xs_) {
      put("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/><text "
          "class=\"tick\" x=\"{0:.1f}\" y=\"{3:.1f}\">{4:.0f}</text>\n",
          x_(x), top, height - bottom, height - bottom + 15, x);
    }
    put("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", (left + width - right) / 2, height - 8,
        escaped(chart_.x_unit));
  }

  void draw_line(const Line& line) {
    std::string points;
    for (const auto& [x, y] : line.points)
      fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", x_(x), y_(y));
    put("<g class=\"{}\">\n<polyline class=\"line{}\" points=\"{}\"/>\n", class_of(line.colour),
        line.dotted   ? " dotted"
        : line.dashed ? " dashed"
                      : "",
        points);
    for (const auto& [x, y] : line.points) {
      if (line.dotted) break;
      put("<circle class=\"point{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.4\"><title>{}, {:.0f} {}: {:.4g} "
          "{}</title></circle>\n",
          line.dashed ? " hollow" : "", x_(x), y_(y), escaped(line.name), x, escaped(chart_.x_unit), y,
          escaped(chart_.y_unit));
    }
    put("</g>\n");
  }

  const LineChart& chart_;
  std::set<double> xs_;
  Axis x_, y_;
  std::string text_;
};

}  // namespace

std::string to_svg(const LineChart& chart) {
  return ChartDrawing(chart).draw();
}

}  // namespace annulus::html
