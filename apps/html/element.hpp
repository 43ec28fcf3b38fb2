#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "html/palette.hpp"

/// HTML and SVG as text. What is called text is escaped here, what is called HTML is taken as it is.
namespace annulus::html {

/// What `text` is inside XML and HTML, attributes too.
std::string escaped(std::string_view text);

/// <tag>text</tag>.
std::string element(std::string_view tag, std::string_view text);

/// The beginning of an SVG element of so many pixels; "</svg>" ends it. `title`: text.
std::string begin_svg(double width, double height, std::string_view title);

/// Text in an SVG element; `kind`: its class.
std::string text_element(const char* kind, double x, double y, std::string_view text);

/// A drawing, or several in a row that breaks where the page ends. What is wider than the page scrolls in it.
std::string figure(std::string_view html);
std::string figure_row(std::string_view html);

/// Names above values, side by side.
std::string facts(const std::vector<std::pair<std::string, std::string>>& names_and_values);

/// A colour and what it stands for.
struct LegendKey {
  Colour colour;
  std::string meaning;
};
/// Keys side by side; `note` follows them where it is not empty.
std::string legend(const std::vector<LegendKey>& keys, std::string_view note = "");

}  // namespace annulus::html
