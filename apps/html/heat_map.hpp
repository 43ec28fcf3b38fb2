#pragma once

#include <string>
#include <vector>

#include "html/palette.hpp"

namespace annulus::html {

/// A value for every row and column: the nearer to `most`, the stronger the colour of its cell.
struct HeatMap {
  std::string title;
  std::string unit = {};              ///< of the values; may be empty
  std::string row_name, column_name;  ///< what rows and columns tell apart
  std::vector<std::string> rows = {}, columns = {};
  std::vector<double> values = {};  ///< (rows, columns); not finite: not measured
  double least = 0, most = 1;       ///< without colour, and of full colour
  int digits = 2;                   ///< of the values, behind the point
  /// Many cells, small and without text, in twenty shades: a picture. Empty names of rows and columns take no
  /// place.
  bool picture = false;
  Colour colour = Colour::blue;
};

/// A value of a heat map by the names of its row and its column.
struct HeatMapCell {
  std::string row, column;
  double value = 0;
};
/// Gives the map these cells: its rows and columns come in the order in which they are first named, and cells
/// that are not there were not measured.
void set_cells(HeatMap& map, const std::vector<HeatMapCell>& cells);

/// An SVG element. Every cell has its value as text, and a title to hover with row and column; a cell that
/// was not measured has a dash. A picture has neither, and no cells without colour. Throws Error when there
/// is not one value for each cell.
std::string to_svg(const HeatMap& map);

}  // namespace annulus::html
