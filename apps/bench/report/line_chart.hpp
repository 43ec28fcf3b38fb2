#pragma once

#include <string>
#include <utility>
#include <vector>

namespace annulus::bench {

/// Points joined by a line.
struct Line {
  std::string name;
  std::size_t colour = 0;  ///< index, see colour_of
  bool dashed = false;
  std::vector<std::pair<double, double>> points;  ///< (ranks, value), ranks ascending
};

/// "#rrggbb", one after the other for the indices 0, 1, …
const char* colour_of(std::size_t index);

/// An SVG element: values over ranks, both axes from round number to round number. Ranks are drawn at equal
/// distances for equal factors. With `logarithmic` the values are so, too (they are positive then); else the
/// axis starts at 0. Every point has a title to hover.
std::string line_chart(const std::string& title, const std::string& unit, const std::vector<Line>& lines,
                       bool logarithmic);

}  // namespace annulus::bench
