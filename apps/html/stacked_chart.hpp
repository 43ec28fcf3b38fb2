#pragma once

#include <string>
#include <vector>

#include "html/palette.hpp"

namespace annulus::html {

/// What lies on top of one another in columns.
struct Layer {
  std::string name;
  Colour colour = Colour::blue;
  std::vector<double> values;  ///< of each column, not negative
};

/// Columns side by side, without space between them, and a line over them.
struct StackedChart {
  std::string title;
  std::string unit;                  ///< of the values
  std::vector<std::string> columns;  ///< names, shown on hovering
  std::vector<Layer> layers;         ///< from the bottom
  std::string line_name;
  std::vector<double> line;  ///< of each column; empty: none
};

/// An SVG element.
std::string to_svg(const StackedChart& chart);

}  // namespace annulus::html
