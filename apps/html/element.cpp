#include "html/element.hpp"

#include <fmt/format.h>

namespace annulus::html {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
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
