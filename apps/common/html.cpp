#include "common/html.hpp"

#include <fmt/format.h>

#include <cmath>

namespace annulus::app {
namespace {

constexpr std::string_view style = R"(
body { font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #222; margin: 24px; }
h1 { font-size: 20px; margin: 0 0 2px; }
h2 { font-size: 17px; margin: 18px 0 6px; }
h3 { font-size: 14px; margin: 10px 0 4px; }
p.case { color: #555; margin: 0 0 14px; }
dl { display: flex; flex-wrap: wrap; gap: 10px 32px; margin: 0 0 16px; }
dt { color: #666; font-size: 12px; }
dd { margin: 0; font-weight: 600; }
.key { display: inline-block; margin: 0 18px 6px 0; font-size: 12px; }
.key i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; vertical-align: -1px; }
figure { margin: 6px 0 20px; overflow-x: auto; }
figure.row { display: flex; flex-wrap: wrap; gap: 24px; }
svg { font-family: inherit; display: block; }
svg .grid { stroke: #dcdcdc; }
svg line.node { stroke: #888; }
svg text.node { font-size: 12px; font-weight: 600; fill: #555; }
svg text.rank { font-size: 12px; font-weight: 600; }
svg text.lane { font-size: 10.5px; fill: #666; text-anchor: end; }
svg rect.lane { fill: #f4f4f4; fill-opacity: 0.6; }
svg text.tick { font-size: 11px; fill: #555; text-anchor: middle; }
svg .bar { stroke: #fff; stroke-width: 0.4; }
svg .bar:hover { stroke: #000; stroke-width: 1; }
svg text.in { font-size: 10px; fill: #fff; text-anchor: middle; pointer-events: none; }
svg text.small { font-size: 8px; }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: right; padding: 2px 14px 2px 0; border-bottom: 1px solid #e4e4e4; }
td.text { text-align: left; }
th { color: #666; font-weight: 500; }
footer { color: #888; font-size: 12px; margin-top: 18px; }
)";

}  // namespace

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

double tick_distance(double length) {
  const double power = std::pow(10.0, std::floor(std::log10(length / 10)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (length / (factor * power) <= 12) return factor * power;
  }
  return 10 * power;
}

std::string html_page(std::string_view title, std::string_view body, std::string_view footer) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>{}</title>\n"
      "<style>{}</style>\n</head>\n<body>\n{}<footer>{}</footer>\n</body>\n</html>\n",
      escaped(title), style, body, escaped(footer));
}

}  // namespace annulus::app
