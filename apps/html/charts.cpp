#include "html/charts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "html/axis.hpp"
#include "html/element.hpp"

namespace annulus::html {

namespace {

constexpr double left = 62, right = 16, top = 34;  // pixels beside the lines

/// An SVG element that is being written, of so many pixels.
class Drawing {
 public:
  Drawing(const std::string& title, const std::string& unit, double width, double height)
      : end_(width - right), text_(begin_svg(width, height, title)) {
    put_text("title", 4, 16, unit.empty() ? title : fmt::format("{} ({})", title, unit));
  }

  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    text_ += fmt::format(text, std::forward<Args>(args)...);
  }

  void put_text(const char* kind, double x, double y, const std::string& text) {
    text_ += text_element(kind, x, y, text);
  }

  void put_level(double y, double value) { put_level(y, fmt::format("{:.4g}", value)); }
  void put_level(double y, const std::string& value) {
    put("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", left, end_, y);
    put_text("label", left - 8, y + 3.5, value);
  }

  std::string end() const { return text_ + "</svg>\n"; }

 private:
  double end_;
  std::string text_;
};

void draw_line(const LineChart& chart, const ChartLine& line, const Axis& to_x, const Axis& to_y,
               Drawing& drawing) {
  std::string points;
  for (const auto& [x, y] : line.points) points += fmt::format("{:.1f},{:.1f} ", to_x(x), to_y(y));
  drawing.put("<g class=\"{}\">\n<polyline class=\"line{}\" points=\"{}\"/>\n", class_of(line.colour),
              line.dotted   ? " dotted"
              : line.dashed ? " dashed"
                            : "",
              points);
  for (const auto& [x, y] : line.points) {
    if (line.dotted) break;
    drawing.put(
        "<circle class=\"point{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.4\"><title>{}, {:.0f} {}: "
        "{:.4g} {}</title></circle>\n",
        line.dashed ? " hollow" : "", to_x(x), to_y(y), escaped(line.name), x, escaped(chart.x_unit), y,
        escaped(chart.y_unit));
  }
  drawing.put("</g>\n");
}

}  // namespace

std::string to_svg(const LineChart& chart) {
  constexpr double width = 460, height = 300, bottom = height - 40;
  double min = INFINITY, max = 0;
  std::set<double> all;
  for (const ChartLine& line : chart.lines) {
    for (const auto& [x, y] : line.points) {
      all.insert(x);
      min = std::min(min, y);
      max = std::max(max, y);
    }
  }
  const bool logarithmic = chart.logarithmic;
  const Axis to_x{*all.begin(), *all.rbegin(), left + 14, width - right - 14, true};
  const Axis to_y{logarithmic ? min / 1.15 : 0, (logarithmic ? 1.15 : 1.08) * max, bottom, top, logarithmic};
  Drawing drawing(chart.title, chart.y_unit, width, height);
  for (const double tick : logarithmic ? logarithmic_ticks(to_y.min, to_y.max) : linear_ticks(to_y.max))
    drawing.put_level(to_y(tick), tick);
  double free_until = width;  // for text of ticks, which begins with the largest
  for (auto x = all.rbegin(); x != all.rend(); ++x) {
    const std::string tick = fmt::format("{:.0f}", *x);
    const double middle = to_x(*x), half = 3.2 * double(tick.size()) + 2;
    drawing.put("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n",
                middle, top, bottom);
    if (middle + half > free_until) continue;
    drawing.put_text("tick", middle, bottom + 15, tick);
    free_until = middle - half;
  }
  drawing.put_text("tick", (left + width - right) / 2, height - 8, chart.x_unit);
  for (const ChartLine& line : chart.lines) draw_line(chart, line, to_x, to_y, drawing);
  return drawing.end();
}

namespace {

// The points of a line that can be told apart: of a column of pixels the first, lowest, highest and last.
std::string thinned(const Series& series, const Axis& to_x, const Axis& to_y) {
  std::string text;
  const auto put = [&](const std::pair<double, double>& point) {
    text += fmt::format("{:.1f},{:.1f} ", to_x(point.first), to_y(point.second));
  };
  const auto column = [&](const auto& point) { return std::floor(to_x(point.first)); };
  const auto& points = series.points;
  for (auto begin = points.begin(); begin != points.end();) {
    const auto end =
        std::find_if(begin, points.end(), [&](const auto& p) { return column(p) != column(*begin); });
    const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto [lowest, highest] = std::minmax_element(begin, end, by_value);
    std::set<typename std::vector<std::pair<double, double>>::const_iterator> shown{begin, lowest, highest,
                                                                                    end - 1};
    for (const auto point : shown) put(*point);
    begin = end;
  }
  return text;
}

}  // namespace

std::string to_svg(const SeriesChart& given) {
  constexpr double width = 860, height = 300, bottom = height - 40;
  SeriesChart chart = given;
  double first = INFINITY, last = -INFINITY, min = INFINITY, max = -INFINITY;
  for (Series& series : chart.series) {
    std::erase_if(series.points, [](const auto& p) { return !std::isfinite(p.second); });
    for (const auto& [x, y] : series.points) {
      first = std::min(first, x);
      last = std::max(last, x);
      min = std::min(min, y);
      max = std::max(max, y);
    }
  }
  Drawing drawing(chart.title, chart.y_unit, width, height);
  if (first > last) return drawing.end();
  if (chart.from_zero) min = std::min(0.0, min);
  const double space = max > min ? 0.06 * (max - min) : std::max(std::abs(max), 1e-12) * 0.5;
  const Axis to_x{first, last, left + 4, width - right - 4};
  const Axis to_y{chart.from_zero && min >= 0 ? 0 : min - space, max + space, bottom, top};
  for (const double tick : ticks_between(to_y.min, to_y.max, 2 * tick_distance(to_y.max - to_y.min)))
    drawing.put_level(to_y(tick), count_text(tick));
  const double distance = last > first ? tick_distance(last - first) : 1;
  for (const double x : ticks_between(first, last, distance))
    drawing.put_text("tick", to_x(x), bottom + 15, count_text(x));
  drawing.put_text("tick", (left + width - right) / 2, height - 8, chart.x_unit);
  for (const auto& [x, text] : chart.marks)
    if (x >= first && x <= last)
      drawing.put(
          "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" "
          "y1=\"{1:.1f}\" y2=\"{2:.1f}\"><title>{3}</title></line>\n",
          to_x(x), top, bottom, escaped(text));
  for (const bool faint : {true, false})
    for (const Series& series : chart.series)
      if (series.faint == faint && !series.points.empty())
        drawing.put(
            "<g class=\"{}\">\n<polyline class=\"{}\" points=\"{}\"><title>{}</title></polyline>\n</g>\n",
            class_of(series.colour), faint ? "line faint" : "line", thinned(series, to_x, to_y),
            escaped(series.name));
  return drawing.end();
}

std::string to_svg(const StackedChart& chart) {
  constexpr double width = 860, height = 340, bottom = height - 24;
  const std::size_t columns = chart.columns.size();
  std::vector<double> heights(columns, 0), below(columns, 0);
  for (const Layer& layer : chart.layers)
    for (std::size_t i = 0; i < columns; ++i) heights[i] += layer.values[i];
  double most = 0;
  for (const std::vector<double>& values : {heights, chart.line})
    for (const double value : values) most = std::max(most, value);
  const Axis y{0, most > 0 ? 1.08 * most : 1, bottom, top, false};
  const double step = (width - left - right) / double(std::max<std::size_t>(1, columns));
  const auto begin = [&](std::size_t column) { return left + double(column) * step; };
  Drawing drawing(chart.title, chart.unit, width, height);
  for (const double tick : linear_ticks(y.max)) drawing.put_level(y(tick), tick);
  for (const Layer& layer : chart.layers) {
    drawing.put("<g class=\"{}\">\n", class_of(layer.colour));
    for (std::size_t i = 0; i < columns; ++i) {
      const double value = layer.values[i], upper = y(below[i] + value);
      if (value <= 0) continue;
      drawing.put(
          "<rect fill=\"currentColor\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\">"
          "<title>{}, {}: {:.4g} {}; all: {:.4g} {}</title></rect>\n",
          begin(i), upper, step, y(below[i]) - upper, escaped(chart.columns[i]), escaped(layer.name), value,
          escaped(chart.unit), heights[i], escaped(chart.unit));
      below[i] += value;
    }
    drawing.put("</g>\n");
  }
  if (!chart.line.empty()) {
    std::string points;
    for (std::size_t i = 0; i < columns; ++i)
      points += fmt::format("{0:.1f},{2:.1f} {1:.1f},{2:.1f} ", begin(i), begin(i + 1), y(chart.line[i]));
    drawing.put(
        "<g class=\"{}\">\n<polyline class=\"line\" points=\"{}\"><title>{}</title></polyline>\n</g>\n",
        class_of(Colour::grey), points, escaped(chart.line_name));
  }
  return drawing.end();
}

}  // namespace annulus::html
