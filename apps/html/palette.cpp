#include "html/palette.hpp"

#include <fmt/format.h>

#include <array>

namespace annulus::html {

namespace {

/// Text inside bars is white on light pages and black on dark ones, except where a shade is too pale for
/// white.
struct Shades {
  const char* name;
  const char* light;
  const char* dark;
  bool pale;
};

constexpr std::array<Shades, 12> shades = {{{"blue", "#2f6db5", "#6aa3e8", false},
                                            {"red", "#cc4b2f", "#f0785a", false},
                                            {"teal", "#1c8577", "#3fbcab", false},
                                            {"purple", "#8552b8", "#b68ae6", false},
                                            {"orange", "#d98324", "#f0a04b", true},
                                            {"sky", "#6f9bd1", "#a5c8f2", true},
                                            {"green", "#6aa356", "#8ccf76", true},
                                            {"wine", "#a63d50", "#e27d90", false},
                                            {"slate", "#56657a", "#9fb0c6", false},
                                            {"brown", "#96681f", "#d3a457", false},
                                            {"rose", "#efc0c0", "#6e3b3f", true},
                                            {"grey", "#9c9c9c", "#a3a3a3", true}}};
constexpr std::size_t series_colours = 10;

}  // namespace

std::string_view class_of(Colour colour) {
  return shades[static_cast<std::size_t>(colour)].name;
}

Colour series_colour(std::size_t index) {
  return static_cast<Colour>(index % series_colours);
}

std::string palette_style() {
  std::string light, dark;
  for (const Shades& s : shades) {
    light += fmt::format(".{} {{ color: {}; }}\n", s.name, s.light);
    if (s.pale) light += fmt::format("svg text.in.{} {{ fill: #16181c; }}\n", s.name);
    dark += fmt::format(".{} {{ color: {}; }}\n", s.name, s.dark);
  }
  return fmt::format("{}@media (prefers-color-scheme: dark) {{\n{}svg text.in {{ fill: #16181c; }}\n}}\n",
                     light, dark);
}

}  // namespace annulus::html
