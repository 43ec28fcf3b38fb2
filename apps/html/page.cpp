#include "html/page.hpp"

#include <fmt/format.h>

#include <annulus/base/version.hpp>

#include "html/element.hpp"
#include "html/palette.hpp"

namespace annulus::html {

namespace {

// Colours that both schemes have are variables; those of data are in palette.cpp.
constexpr std::string_view style = R"(
:root { color-scheme: light dark; --page: #fff; --ink: #1f2328; --soft: #59636e; --line: #d9dde2; --lane: #f5f6f8; }
@media (prefers-color-scheme: dark) {
:root { --page: #14171b; --ink: #e4e7eb; --soft: #9aa4af; --line: #333a42; --lane: #1c2127; }
}
body { font: 14px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink); background: var(--page);
  margin: 28px; }
h1 { font-size: 22px; line-height: 1.3; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 30px 0 8px; }
h3 { font-size: 14px; margin: 16px 0 4px; }
p.subtitle { color: var(--soft); margin: 0 0 18px; max-width: 110ch; }
dl { display: flex; flex-wrap: wrap; gap: 12px 36px; margin: 0 0 20px; }
dt { color: var(--soft); font-size: 12px; }
dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; }
.legend { margin: 4px 0; }
.key { display: inline-block; margin: 0 18px 4px 0; font-size: 12px; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px;
  vertical-align: -1px; background: currentColor; }
figure { margin: 6px 0 20px; overflow-x: auto; }
figure.row { display: flex; flex-wrap: wrap; gap: 24px; }
svg { font-family: inherit; display: block; }
svg text { fill: var(--ink); }
svg .grid { stroke: var(--line); }
svg .title { font-size: 12px; font-weight: 600; }
svg .label { font-size: 10.5px; fill: var(--soft); text-anchor: end; }
svg .tick { font-size: 11px; fill: var(--soft); text-anchor: middle; }
svg .line { fill: none; stroke: currentColor; stroke-width: 1.8; }
svg .faint { stroke-width: 1; stroke-opacity: 0.35; }
svg .mark { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .dashed { stroke-dasharray: 5 4; }
svg .dotted { stroke-dasharray: 1 4; }
svg .point { fill: currentColor; stroke: currentColor; }
svg .hollow { fill: var(--page); }
svg line.group { stroke: var(--soft); }
svg text.group { font-size: 12px; font-weight: 600; fill: var(--soft); }
svg text.row-name { font-size: 12px; font-weight: 600; }
svg rect.lane { fill: var(--lane); fill-opacity: 0.6; }
svg .bar { fill: currentColor; stroke: var(--page); stroke-width: 0.4; }
svg .bar:hover { stroke: var(--ink); stroke-width: 1; }
svg .cell { fill: currentColor; stroke: var(--line); }
svg .frame { fill: none; stroke: var(--line); }
svg .shade { fill: currentColor; shape-rendering: crispEdges; }
svg .value { font-size: 11px; text-anchor: middle; pointer-events: none; font-variant-numeric: tabular-nums; }
svg text.in { font-size: 10px; fill: #fff; text-anchor: middle; pointer-events: none; }
svg text.small { font-size: 8px; }
.scroll { overflow-x: auto; overflow-y: auto; max-height: 85vh; margin: 6px 0 20px; }
@media print { .scroll { max-height: none; } }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; position: sticky; top: 0; z-index: 1; background: var(--page);
  box-shadow: inset 0 -1px var(--line); }
.text { text-align: left; }
td.prose { text-align: left; white-space: normal; min-width: 40ch; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); }
th:first-child { z-index: 2; }
tbody tr:hover td { background: var(--lane); }
footer { color: var(--soft); font-size: 12px; margin-top: 24px; }
)";

}  // namespace

std::string to_text(const Page& page) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{}</title>\n"
      "<style>{}{}</style>\n</head>\n<body>\n<h1>{}</h1>\n<p class=\"subtitle\">{}</p>\n{}"
      "<footer>{}, {} ({})</footer>\n</body>\n</html>\n",
      escaped(page.title), style, palette_style(), escaped(page.heading), escaped(page.subtitle), page.body,
      escaped(page.program), version(), git_hash());
}

}  // namespace annulus::html
