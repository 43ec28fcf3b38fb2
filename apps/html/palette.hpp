#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace annulus::html {

/// Colours of lines and bars, each in a light and a dark shade; the page takes those of the reader's colour
/// scheme. The first ten tell series apart.
enum class Colour : std::uint8_t {
  blue,
  red,
  teal,
  purple,
  orange,
  sky,
  green,
  wine,
  slate,
  brown,
  rose,
  grey
};

/// The class that gives an element this colour: `currentColor` in SVG.
std::string_view class_of(Colour colour);

/// One after the other for the indices 0, 1, …
Colour series_colour(std::size_t index);

/// CSS: the classes, for both colour schemes.
std::string palette_style();

}  // namespace annulus::html
