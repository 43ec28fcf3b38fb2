#include "bench/report/line_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>

#include "common/html.hpp"

namespace annulus::bench {

namespace {

// Pixels.
constexpr double width = 460, height = 300, left = 62, right = 16, top = 34, bottom = 40;

constexpr std::array<const char*, 10> colours = {"#3f74b8", "#d9573b", "#2a9d8f", "#9b6bcc", "#f0a04b",
                                                 "#6f9bd1", "#7fb069", "#b5495b", "#5d6d7e", "#a9772f"};

/// Maps values to pixels.
struct Axis {
  double least = 0, most = 1, begin = 0, end = 1;
  bool logarithmic = false;

  double operator()(double value) const {
    const auto place = [this](double v) { return logarithmic ? std::log(v) : v; };
    const double length = place(most) - place(least);
    return begin + (length > 0 ? (place(value) - place(least)) / length : 0.5) * (end - begin);
  }
};

/// Round numbers inside the range: 1, 2 and 5 times powers of ten, or 1 to 9 times where these are too few.
std::vector<double> logarithmic_ticks(double least, double most) {
  const std::vector<double> few = {1, 2, 5}, many = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<double> ticks;
  for (const std::vector<double>& factors : {few, many}) {
    ticks.clear();
    for (double power = std::pow(10.0, std::floor(std::log10(least))); power <= most; power *= 10) {
      for (const double factor : factors) {
        const double tick = power * factor;
        if (tick >= least * (1 - 1e-9) && tick <= most * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    if (ticks.size() >= 3) break;
  }
  return ticks;
}

std::vector<double> linear_ticks(double most) {
  std::vector<double> ticks;
  const double step = 2 * app::tick_distance(most);  // a small drawing: about five
  for (int i = 0; i * step <= most * (1 + 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
}

class Chart {
 public:
  Chart(const std::vector<Line>& lines, bool logarithmic) : lines_(lines) {
    double least = INFINITY, most = 0;
    for (const Line& line : lines) {
      for (const auto& [ranks, value] : line.points) {
        ranks_.insert(ranks);
        least = std::min(least, value);
        most = std::max(most, value);
      }
    }
    x_ = {*ranks_.begin(), *ranks_.rbegin(), left + 14, width - right - 14, true};
    y_ = {logarithmic ? least / 1.15 : 0, (logarithmic ? 1.15 : 1.08) * most, height - bottom, top,
          logarithmic};
  }

  std::string draw(const std::string& title, const std::string& unit) {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<title>{2}</title>\n<text class=\"rank\" x=\"4\" "
        "y=\"16\">{2}</text>\n<text class=\"lane\" x=\"{3:.0f}\" y=\"{4:.0f}\">{5}</text>\n",
        width, height, app::escaped(title), left - 8, top - 4, app::escaped(unit));
    grid();
    for (const Line& line : lines_) draw(line, unit);
    return text_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), text, std::forward<Args>(args)...);
  }

  void grid() {
    for (const double tick : y_.logarithmic ? logarithmic_ticks(y_.least, y_.most) : linear_ticks(y_.most)) {
      put("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text "
          "class=\"lane\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5:.4g}</text>\n",
          left, width - right, y_(tick), left - 8, y_(tick) + 3.5, tick);
    }
    for (const double ranks : ranks_) {
      put("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/><text "
          "class=\"tick\" x=\"{0:.1f}\" y=\"{3:.1f}\">{4:.0f}</text>\n",
          x_(ranks), top, height - bottom, height - bottom + 15, ranks);
    }
    put("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">ranks</text>\n", (left + width - right) / 2,
        height - 8);
  }

  void draw(const Line& line, const std::string& unit) {
    std::string points;
    for (const auto& [ranks, value] : line.points)
      fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", x_(ranks), y_(value));
    put("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{} points=\"{}\"/>\n",
        colour_of(line.colour), line.dashed ? " stroke-dasharray=\"5 4\"" : "", points);
    for (const auto& [ranks, value] : line.points) {
      put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.4\" fill=\"{}\" stroke=\"{}\"><title>{}, {:.0f} ranks: "
          "{:.4g} {}</title></circle>\n",
          x_(ranks), y_(value), line.dashed ? "#fff" : colour_of(line.colour), colour_of(line.colour),
          app::escaped(line.name), ranks, value, app::escaped(unit));
    }
  }

  const std::vector<Line>& lines_;
  std::set<double> ranks_;
  Axis x_, y_;
  std::string text_;
};

}  // namespace

const char* colour_of(std::size_t index) {
  return colours[index % colours.size()];
}

std::string line_chart(const std::string& title, const std::string& unit, const std::vector<Line>& lines,
                       bool logarithmic) {
  return Chart(lines, logarithmic).draw(title, unit);
}

}  // namespace annulus::bench
