#include "html/element.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace annulus::html {

std::string escaped(std::string_view text) {
  using Entity = std::pair<char, std::string_view>;
  constexpr Entity entities[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}};
  std::string out;
  for (const char c : text) {
    const auto entity = std::ranges::find(entities, c, &Entity::first);
    entity == std::end(entities) ? out += c : out += entity->second;
  }
  return out;
}

std::string element(std::string_view tag, std::string_view text) {
  return fmt::format("<{0}>{1}</{0}>\n", tag, escaped(text));
}

std::string begin_svg(double width, double height, std::string_view title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<title>{2}</title>\n",
      width, height, escaped(title));
}

std::string text_element(const char* kind, double x, double y, std::string_view text) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kind, x, y, escaped(text));
}

std::string figure(std::string_view html) {
  return fmt::format("<figure>\n{}</figure>\n", html);
}

std::string figure_row(std::string_view html) {
  return fmt::format("<figure class=\"row\">\n{}</figure>\n", html);
}

std::string facts(const std::vector<std::pair<std::string, std::string>>& names_and_values) {
  std::string text = "<dl>\n";
  for (const auto& [name, value] : names_and_values) {
    text += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(name), escaped(value));
  }
  return text + "</dl>\n";
}

std::string legend(const std::vector<LegendKey>& keys, std::string_view note) {
  std::string text = "<div class=\"legend\">\n";
  for (const LegendKey& key : keys) {
    text += fmt::format("<span class=\"key\"><i class=\"{}\"></i>{}</span>\n", class_of(key.colour),
                        escaped(key.meaning));
  }
  if (!note.empty()) text += fmt::format("<span class=\"key\">{}</span>\n", escaped(note));
  return text + "</div>\n";
}

}  // namespace annulus::html
