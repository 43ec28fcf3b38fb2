#pragma once

#include <string>
#include <utility>
#include <vector>

#include "html/palette.hpp"

namespace annulus::html {

/// Points joined by a line.
struct ChartLine {
  std::string name;
  Colour colour = Colour::blue;
  bool dashed = false;
  bool dotted = false;                            ///< without points: what would be ideal
  std::vector<std::pair<double, double>> points;  ///< (x, y), x ascending
};

struct LineChart {
  std::string title;
  std::string x_unit;                 ///< what is counted along x
  std::string y_unit;                 ///< may be empty
  bool logarithmic = true;            ///< values of y, which are positive then; else their axis starts at 0
  std::vector<ChartLine> lines = {};  ///< with at least one point
};

/// An SVG element. x stands at equal distances for equal factors, with a tick at every x that occurs, and its
/// number where there is room for it. Every point has a title to hover.
std::string to_svg(const LineChart& chart);

/// What was measured again and again: many points, of which a drawing shows no more than there are pixels.
struct Series {
  std::string name;
  Colour colour = Colour::blue;
  std::vector<std::pair<double, double>> points = {};  ///< (x, y), x ascending
  bool faint = false;                                  ///< behind the others, not in the legend
};

struct SeriesChart {
  std::string title;
  std::string x_unit = {};  ///< what is counted along x
  std::string y_unit = {};  ///< may be empty
  bool from_zero = true;
  std::vector<Series> series = {};
  std::vector<std::pair<double, std::string>> marks = {};  ///< lines across at x, with a text to hover
};

/// An SVG element, 860 pixels wide; the x axis is linear. Where several points share a column of pixels, the
/// line goes through the lowest and the highest of them. Points that are not finite are left out.
std::string to_svg(const SeriesChart& chart);

/// What lies on top of one another in columns.
struct Layer {
  std::string name;
  Colour colour = Colour::blue;
  std::vector<double> values;  ///< of each column, not negative
};

/// Columns side by side, without space between them, and a line over them.
struct StackedChart {
  std::string title;
  std::string unit;                       ///< of the values
  std::vector<std::string> columns = {};  ///< names, shown on hovering
  std::vector<Layer> layers = {};         ///< from the bottom
  std::string line_name = {};
  std::vector<double> line = {};  ///< of each column; empty: none
};

/// An SVG element.
std::string to_svg(const StackedChart& chart);

}  // namespace annulus::html
