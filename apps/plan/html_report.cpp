#include "plan/html_report.hpp"

#include <fmt/format.h>

#include <string>

#include <annulus/base/error.hpp>
#include <annulus/base/units.hpp>
#include <annulus/base/version.hpp>
#include <annulus/io/atomic.hpp>

#include "html/element.hpp"
#include "html/page.hpp"
#include "html/table.hpp"
#include "plan/summary.hpp"
#include "plan/timeline.hpp"

namespace annulus::planner {
namespace {

constexpr std::size_t most_spans = 200000;

std::string rank_table(const plan::Plan& plan, const simulate::Simulation& simulation) {
  using simulate::LinkClass;
  html::Table table({{"rank"},
                     {"node"},
                     {"compute ms"},
                     {"exposed ms"},
                     {"pairs, all heads"},
                     {"sent inside node"},
                     {"sent between nodes"},
                     {"received inside node"},
                     {"received between nodes"},
                     {"buffers"}});
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    const simulate::RankSummary& r = simulation.ranks[static_cast<std::size_t>(rank)];
    table.add({fmt::format("{}", rank), fmt::format("{}", plan.problem.topology.node(rank)),
               fmt::format("{:.3f}", r.computing * 1e3), fmt::format("{:.3f}", r.exposed_communication * 1e3),
               fmt::format("{}", r.pairs), bytes_text(sum(r.sent, LinkClass::intra_node)),
               bytes_text(sum(r.sent, LinkClass::inter_node)),
               bytes_text(sum(r.received, LinkClass::intra_node)),
               bytes_text(sum(r.received, LinkClass::inter_node)), bytes_text(r.buffer_bytes)});
  }
  return table.to_html();
}

std::string page(const plan::Plan& plan, const simulate::Simulation& simulation, const std::string& rates) {
  const std::string title = fmt::format("{}, {}", plan.schedule, plan.pass_text());
  const std::string body = html::facts(facts(summarize(simulation))) + legend(simulation.timeline) +
                           html::figure(svg_timeline(plan, simulation)) + rank_table(plan, simulation);
  return html::to_text({.title = title,
                        .heading = fmt::format("{} on {}", title, plan.problem.topology.to_string()),
                        .subtitle = fmt::format("{}; {} plan steps; predicted by rates of {}", describe(plan),
                                                plan.steps, rates),
                        .body = body,
                        .footer = fmt::format("annulus-plan {} ({}), simulated", version(), git_hash())});
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
                const simulate::Simulation& simulation, const std::string& rates) {
  const simulate::Timeline& timeline = simulation.timeline;
  const std::size_t spans = timeline.computes.size() + timeline.transfers.size() + timeline.waits.size();
  check_size(spans);
  io::write_text_atomically(path, page(plan, simulation, rates));
}

}  // namespace annulus::planner
