#include "plan/html_report.hpp"

#include <fmt/format.h>

#include <iterator>
#include <string>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>
#include <annulus/io/atomic.hpp>

#include "common/html.hpp"
#include "common/text.hpp"
#include "plan/summary.hpp"
#include "plan/svg_timeline.hpp"

namespace annulus::planner {
namespace {

using app::bytes_text;
using app::escaped;

constexpr std::size_t most_spans = 200000;

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
        rank, plan.problem.topology.node(rank), r.computing * 1e3, r.exposed_communication * 1e3, r.pairs,
        bytes_text(sum(r.sent, LinkClass::intra_node)), bytes_text(sum(r.sent, LinkClass::inter_node)),
        bytes_text(sum(r.received, LinkClass::intra_node)),
        bytes_text(sum(r.received, LinkClass::inter_node)), bytes_text(r.buffer_bytes));
  }
  return text + "</table>\n";
}

std::string page(const plan::Plan& plan, const simulate::Simulation& simulation) {
  const std::string title = fmt::format("{}, {}", plan.schedule, name_of(plan.pass));
  std::string text =
      fmt::format("<h1>{} on {}</h1>\n<p class=\"case\">{}; {} steps</p>\n<dl>\n", escaped(title),
                  escaped(plan.problem.topology.to_string()), escaped(describe(plan)), plan.steps);
  for (const auto& [name, value] : facts(summarize(simulation)))
    fmt::format_to(std::back_inserter(text), "<div><dt>{}</dt><dd>{}</dd></div>\n", name, escaped(value));
  text += fmt::format("</dl>\n<div>{}</div>\n<figure>\n{}</figure>\n{}", legend(simulation.timeline),
                      svg_timeline(plan, simulation), rank_table(plan, simulation));
  return app::html_page(title, text, fmt::format("annulus-plan {} ({}), simulated", version(), git_hash()));
}

void check_size(std::size_t spans) {
  require(spans <= most_spans,
          "--html: the timeline has {} spans or more, but a browser shows at most {}: take fewer --ranks, or "
          "--json",
          spans, most_spans);
}

}  // namespace

void check_html_size(const plan::Plan& plan) {
  std::size_t spans = 0;
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    for (int step = 0; step < plan.steps; ++step) {
      const plan::Step made = plan.step(rank, step);
      spans += made.computes.size() + made.sends.size();
      check_size(spans);
    }
  }
}

void write_html(const std::filesystem::path& path, const plan::Plan& plan,
                const simulate::Simulation& simulation) {
  const simulate::Timeline& timeline = simulation.timeline;
  const std::size_t spans = timeline.computes.size() + timeline.transfers.size() + timeline.waits.size();
  check_size(spans);
  io::write_text_atomically(path, page(plan, simulation));
}

}  // namespace annulus::planner
