#include "html/heat_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
constexpr double picture_cell = 9;  // either side

double width_of(const std::vector<std::string>& texts) {
  std::size_t letters = 0;
  for (const std::string& text : texts) letters = std::max(letters, text.size());
  return heat_letter_width * double(letters);
}

/// Where cells lie, in pixels.
struct Cells {
  double left, width, height;
  double x(std::size_t column) const { return left + width * double(column); }
  double y(std::size_t row) const { return above_cells + height * double(row); }
};

/// How much of the colour a value has, from 0, none, to 1.
double fill_of(const HeatMap& map, double value) {
  if (!std::isfinite(value)) return 0;
  return std::clamp((value - map.least) / (map.most - map.least), 0.0, 1.0);
}

std::string value_text(const HeatMap& map, double value) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, map.digits) : "–";
}

std::string cells_with_values(const HeatMap& map, const Cells& cells) {
  std::string svg;
  const std::string unit = map.unit.empty() ? "" : " " + escaped(map.unit);
  for (std::size_t i = 0; i < map.values.size(); ++i) {
    const std::size_t row = i / map.columns.size(), column = i % map.columns.size();
    const std::string text = value_text(map, map.values[i]);
    svg += fmt::format(
        "<g class=\"{}\"><title>{} {}, {} {}: {}</title><rect class=\"cell\" x=\"{:.1f}\" y=\"{:.1f}\" "
        "width=\"{:.1f}\" height=\"{:.1f}\" fill-opacity=\"{:.3f}\"/></g>\n",
        class_of(map.colour), escaped(map.row_name), escaped(map.rows[row]), escaped(map.column_name),
        escaped(map.columns[column]), std::isfinite(map.values[i]) ? text + unit : "not measured",
        cells.x(column), cells.y(row), cells.width, cells.height,
        strongest_fill * fill_of(map, map.values[i]));
    svg += text_element("value", cells.x(column) + cells.width / 2, cells.y(row) + 17, text);
  }
  return svg;
}

/// A path for all cells of one shade, which is far shorter than an element for each.
std::string shaded_cells(const HeatMap& map, const Cells& cells) {
  constexpr int count = 20;
  std::array<std::string, count + 1> paths;
  for (std::size_t i = 0; i < map.values.size(); ++i)
    fmt::format_to(
        std::back_inserter(paths[static_cast<std::size_t>(std::lround(count * fill_of(map, map.values[i])))]),
        "M{:.0f} {:.0f}h{}v{}h-{}z", cells.x(i % map.columns.size()), cells.y(i / map.columns.size()),
        cells.width, cells.height, cells.width);
  std::string svg = fmt::format(
      "<rect class=\"frame\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", cells.left,
      above_cells, cells.width * double(map.columns.size()), cells.height * double(map.rows.size()));
  for (std::size_t shade = 1; shade <= count; ++shade)
    if (!paths[shade].empty())
      svg += fmt::format("<path class=\"shade {}\" fill-opacity=\"{:.2f}\" d=\"{}\"/>\n",
                         class_of(map.colour), double(shade) / count, paths[shade]);
  return svg;
}

/// Where a name stands among others, which it joins where it is new.
std::size_t place_of(const std::string& name, std::vector<std::string>& names) {
  const auto found = std::ranges::find(names, name);
  const auto place = static_cast<std::size_t>(found - names.begin());
  if (found == names.end()) names.push_back(name);
  return place;
}

}  // namespace

void set_cells(HeatMap& map, const std::vector<HeatMapCell>& cells) {
  for (const HeatMapCell& cell : cells) {
    place_of(cell.row, map.rows);
    place_of(cell.column, map.columns);
  }
  map.values.assign(map.rows.size() * map.columns.size(), NAN);
  for (const HeatMapCell& cell : cells)
    map.values[place_of(cell.row, map.rows) * map.columns.size() + place_of(cell.column, map.columns)] =
        cell.value;
}

std::string to_svg(const HeatMap& map) {
  const std::size_t columns = map.columns.size();
  require(map.values.size() == map.rows.size() * columns,
          "a heat map of {} rows and {} columns got {} values", map.rows.size(), columns, map.values.size());
  std::vector<std::string> texts = map.columns;
  for (const double value : map.values) texts.push_back(value_text(map, value));

  const Cells cells{.left = std::max(width_of(map.rows), width_of({map.row_name})) + 16,
                    .width = map.picture ? picture_cell : std::max(width_of(texts), 28.0) + 12,
                    .height = map.picture ? picture_cell : cell_height};
  const double bottom = cells.y(map.rows.size()), right = cells.x(columns);
  const std::string title = map.unit.empty() ? map.title : fmt::format("{} ({})", map.title, map.unit);
  std::string svg = begin_svg(std::max(right, heat_letter_width * double(title.size())) + 16,
                              bottom + below_cells, map.title);
  svg += text_element("title", 4, 16, title);
  svg += text_element("label", cells.left - 8, above_cells - 8, map.row_name);
  svg += map.picture ? shaded_cells(map, cells) : cells_with_values(map, cells);
  for (std::size_t row = 0; row < map.rows.size(); ++row)
    if (!map.rows[row].empty())
      svg += text_element("label", cells.left - 8, cells.y(row) + cells.height / 2 + 4, map.rows[row]);
  for (std::size_t column = 0; column < columns; ++column)
    if (!map.columns[column].empty())
      svg += text_element("tick", cells.x(column) + cells.width / 2, bottom + 15, map.columns[column]);
  svg += text_element("tick", (cells.left + right) / 2, bottom + 32, map.column_name);
  return svg + "</svg>\n";
}

}  // namespace annulus::html
