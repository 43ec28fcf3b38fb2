#include "plan/html_report.hpp"

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>
#include <annulus/io/atomic.hpp>

#include "plan/summary.hpp"
#include "plan/svg_timeline.hpp"

namespace annulus::planner {
namespace {

constexpr std::size_t most_spans = 200000;

constexpr std::string_view style = R"(
body { font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #222; margin: 24px; }
h1 { font-size: 20px; margin: 0 0 2px; }
p.case { color: #555; margin: 0 0 14px; }
dl { display: flex; flex-wrap: wrap; gap: 10px 32px; margin: 0 0 16px; }
dt { color: #666; font-size: 12px; }
dd { margin: 0; font-weight: 600; }
.key { display: inline-block; margin: 0 18px 6px 0; font-size: 12px; }
.key i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; vertical-align: -1px; }
figure { margin: 6px 0 20px; overflow-x: auto; }
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
th { color: #666; font-weight: 500; }
footer { color: #888; font-size: 12px; margin-top: 18px; }
)";

std::string rank_table(const plan::Plan& plan, const simulate::Simulation& simulation) {
  std::string text =
      "<table>\n<tr><th>rank</th><th>node</th><th>compute ms</th><th>exposed ms</th><th>pairs, all heads</th>"
      "<th>sent in node</th><th>sent between</th><th>received in node</th><th>received "
      "between</th><th>buffers</th></tr>\n";
  using simulate::LinkClass;
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    const simulate::RankSummary& r = simulation.ranks[static_cast<std::size_t>(rank)];
    fmt::format_to(
        std::back_inserter(text),
        "<tr><td>{}</td><td>{}</td><td>{:.3f}</td><td>{:.3f}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td></tr>\n",
        rank, plan.problem.topology.node(rank), r.computing * 1e3, r.waiting * 1e3, r.pairs,
        bytes_text(sum(r.sent, LinkClass::intra)), bytes_text(sum(r.sent, LinkClass::inter)),
        bytes_text(sum(r.received, LinkClass::intra)), bytes_text(sum(r.received, LinkClass::inter)),
        bytes_text(r.buffer_bytes));
  }
  return text + "</table>\n";
}

std::string page(const plan::Plan& plan, const simulate::Simulation& simulation) {
  const std::string title = escaped(fmt::format("{}, {}", plan.schedule, name_of(plan.pass)));
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta "
      "charset=\"utf-8\">\n<title>{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<h1>{} on {}</h1>\n<p class=\"case\">{}; {} steps</p>\n<dl>\n",
      title, style, title, escaped(plan.problem.topology.to_string()), escaped(describe(plan)), plan.steps);
  for (const auto& [name, value] : facts(summarize(simulation)))
    fmt::format_to(std::back_inserter(text), "<div><dt>{}</dt><dd>{}</dd></div>\n", name, escaped(value));
  text += fmt::format("</dl>\n<div>{}</div>\n<figure>\n{}</figure>\n{}", legend(simulation.timeline),
                      svg_timeline(plan, simulation), rank_table(plan, simulation));
  text += fmt::format("<footer>annulus-plan {} ({}), simulated</footer>\n</body>\n</html>\n", version(),
                      git_hash());
  return text;
}

}  // namespace

void write_html(const std::filesystem::path& path, const plan::Plan& plan,
                const simulate::Simulation& simulation) {
  const simulate::Timeline& timeline = simulation.timeline;
  const std::size_t spans = timeline.computes.size() + timeline.transfers.size() + timeline.waits.size();
  require(spans <= most_spans,
          "--html: the timeline has {} spans, more than the {} that a browser shows: take fewer --ranks, or "
          "--json",
          spans, most_spans);
  io::write_text_atomically(path, page(plan, simulation));
}

}  // namespace annulus::planner
