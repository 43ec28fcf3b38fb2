#include "html/heat_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <annulus/base/error.hpp>

#include "html/element.hpp"

namespace annulus::html {

namespace {

// Pixels.
constexpr double heat_letter_width = 6.4, cell_height = 26, above_cells = 48, below_cells = 40;
// Text has the page's colour in all cells: on a fill that is stronger it would be hard to read.
constexpr double strongest_fill = 0.6;

double width_of(const std::vector<std::string>& texts) {
  std::size_t letters = 0;
  for (const std::string& text : texts) letters = std::max(letters, text.size());
  return heat_letter_width * double(letters);
}

}  // namespace

std::string to_svg(const HeatMap& map) {
  const std::size_t columns = map.columns.size();
  require(map.values.size() == map.rows.size() * columns,
          "a heat map of {} rows and {} columns got {} values", map.rows.size(), columns, map.values.size());
  std::vector<std::string> texts;
  for (const double value : map.values)
    texts.push_back(std::isfinite(value) ? fmt::format("{:.{}f}", value, map.digits) : "–");

  const double left = std::max(width_of(map.rows), width_of({map.row_name})) + 16,
               cell = std::max({width_of(texts), width_of(map.columns), 28.0}) + 12,
               bottom = above_cells + cell_height * double(map.rows.size()),
               right = left + cell * double(columns);
  const std::string title = map.unit.empty() ? map.title : fmt::format("{} ({})", map.title, map.unit),
                    unit = map.unit.empty() ? "" : " " + escaped(map.unit);
  std::string svg = begin_svg(std::max(right, heat_letter_width * double(title.size())) + 16,
                              bottom + below_cells, map.title);
  const auto text = [&](const char* kind, double x, double y, const std::string& content) {
    svg +=
        fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kind, x, y, escaped(content));
  };
  text("title", 4, 16, title);
  text("label", left - 8, above_cells - 8, map.row_name);
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    const double y = above_cells + cell_height * double(row);
    text("label", left - 8, y + 17, map.rows[row]);
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t at = row * columns + column;
      const double share = (map.values[at] - map.least) / (map.most - map.least),
                   x = left + cell * double(column);
      const bool measured = std::isfinite(map.values[at]);
      svg += fmt::format(
          "<g class=\"{}\"><title>{} {}, {} {}: {}</title><rect class=\"cell\" x=\"{:.1f}\" "
          "y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill-opacity=\"{:.3f}\"/></g>\n",
          class_of(map.colour), escaped(map.row_name), escaped(map.rows[row]), escaped(map.column_name),
          escaped(map.columns[column]), measured ? texts[at] + unit : "not measured", x, y, cell, cell_height,
          measured ? strongest_fill * std::clamp(share, 0.0, 1.0) : 0.0);
      text("value", x + cell / 2, y + 17, texts[at]);
    }
  }
  for (std::size_t column = 0; column < columns; ++column)
    text("tick", left + cell * (double(column) + 0.5), bottom + 15, map.columns[column]);
  text("tick", (left + right) / 2, bottom + 32, map.column_name);
  return svg + "</svg>\n";
}

}  // namespace annulus::html
