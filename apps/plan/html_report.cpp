#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>

#include "base/units.hpp"
#include "html/element.hpp"
#include "html/page.hpp"
#include "html/table.hpp"
#include "html/timeline.hpp"
#include "plan/report.hpp"
#include "training/io/atomic.hpp"

namespace annulus::planner {
namespace {

using html::Colour;
using html::Span;
using simulator::ComputeSpan;
using simulator::LinkClass;
using simulator::TransferSpan;

constexpr std::size_t most_spans = 200000;

/// What spans are coloured by.
enum class SpanKind : std::uint8_t { own, remote, wait, kv, queries, statistics, out, dkv, dq };
struct Look {
  Colour colour;
  const char* meaning;
};
constexpr std::array<Look, 9> looks = {{{Colour::sky, "compute with its own shard"},
                                        {Colour::blue, "compute with a remote shard"},
                                        {Colour::rose, "waiting: exposed communication"},
                                        {Colour::teal, "K, V"},
                                        {Colour::green, "Q, dO"},
                                        {Colour::grey, "LSE, D"},
                                        {Colour::purple, "O"},
                                        {Colour::orange, "dK, dV"},
                                        {Colour::red, "dQ"}}};
Colour colour_of(SpanKind kind) {
  return looks[static_cast<std::size_t>(kind)].colour;
}

SpanKind kind_of(const ComputeSpan& c) {
  return c.q_shard == c.rank && c.kv_shard == c.rank ? SpanKind::own : SpanKind::remote;
}

SpanKind kind_of(const TransferSpan& t) {
  using enum SpanKind;
  constexpr std::array<SpanKind, plan::tensor_count> kinds = {queries,    kv,      kv, out, statistics,
                                                              statistics, queries, dq, dkv, dkv};
  return kinds[static_cast<std::size_t>(t.tensor)];
}

Span span_of(const simulator::WaitSpan& w) {
  return {.start = w.start,
          .end = w.end,
          .colour = colour_of(SpanKind::wait),
          .title = fmt::format("rank {} waits before plan step {}", w.rank, w.step)};
}

Span span_of(const ComputeSpan& c, const plan::Problem& problem) {
  std::string title = fmt::format("rank {}, plan step {}: queries of {}, keys of {}, ", c.rank, c.step,
                                  c.q_shard, c.kv_shard);
  if (c.heads.size() < problem.heads) title += fmt::format("heads [{}, {}), ", c.heads.begin, c.heads.end);
  title += fmt::format("{} pairs per head", c.pairs);
  return {.start = c.start,
          .end = c.end,
          .colour = colour_of(kind_of(c)),
          .label = fmt::format("q{} k{}", c.q_shard, c.kv_shard),
          .title = std::move(title)};
}

/// The time that it is on the link of its sender.
Span span_of(const TransferSpan& t) {
  return {.start = t.start,
          .end = t.left,
          .colour = colour_of(kind_of(t)),
          .label = fmt::format("{} {}", name_of(t.tensor), t.owner),
          .title = fmt::format("{} of shard {}: rank {} to rank {}, {}, {}, posted in plan step {}, there at "
                               "{:.4g} ms",
                               name_of(t.tensor), t.owner, t.from, t.to, bytes_text(t.bytes),
                               name_of(t.channel), t.step, t.end * 1e3)};
}

std::string legend(const simulator::Timeline& timeline) {
  std::array<bool, looks.size()> used{};
  for (const ComputeSpan& c : timeline.computes) used[static_cast<std::size_t>(kind_of(c))] = true;
  for (const TransferSpan& t : timeline.transfers) used[static_cast<std::size_t>(kind_of(t))] = true;
  used[static_cast<std::size_t>(SpanKind::wait)] = !timeline.waits.empty();
  std::vector<html::LegendKey> keys;
  for (std::size_t i = 0; i < looks.size(); ++i)
    if (used[i]) keys.push_back({looks[i].colour, looks[i].meaning});
  return html::legend(keys);
}

/// What a rank does, lane by lane.
struct Lanes {
  std::vector<Span> compute;
  std::array<std::vector<Span>, simulator::link_class_count> sent;
};

std::string svg_timeline(const plan::Plan& plan, const simulator::Simulation& simulation) {
  const Topology& topology = plan.problem.topology;
  std::vector<Lanes> ranks(static_cast<std::size_t>(plan.problem.ranks()));
  const auto lanes = [&](int rank) -> Lanes& { return ranks[rank]; };
  for (const simulator::WaitSpan& w : simulation.timeline.waits) lanes(w.rank).compute.push_back(span_of(w));
  for (const ComputeSpan& c : simulation.timeline.computes)
    lanes(c.rank).compute.push_back(span_of(c, plan.problem));
  for (const TransferSpan& t : simulation.timeline.transfers)
    lanes(t.from).sent[static_cast<std::size_t>(t.link)].push_back(span_of(t));

  html::TimelineDrawing drawing(simulation.time);
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    const int node = topology.node(rank);
    if (topology.nodes() > 1 && rank == topology.first_rank(node))
      drawing.add_group(fmt::format("node {}", node));
    drawing.add_row(fmt::format("rank {}", rank));
    drawing.add_lane("compute", lanes(rank).compute);
    for (const auto& [link, name] : {std::pair(LinkClass::intra_node, "to its node"),
                                     std::pair(LinkClass::inter_node, "to other nodes")}) {
      auto& sent = lanes(rank).sent[static_cast<std::size_t>(link)];
      if (!sent.empty()) drawing.add_stacked_lane(name, std::move(sent));
    }
  }
  return drawing.to_svg(fmt::format("Timeline of {}, {}", plan.schedule, plan.pass_text()));
}

std::string rank_table(const plan::Plan& plan, const simulator::Simulation& simulation) {
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
    const simulator::RankSummary& r = simulation.ranks[rank];
    table.add({fmt::format("{}", rank), fmt::format("{}", plan.problem.topology.node(rank)),
               fmt::format("{:.3f}", r.computing * 1e3), fmt::format("{:.3f}", r.exposed_communication * 1e3),
               fmt::format("{}", r.pairs), bytes_text(sum(r.sent, LinkClass::intra_node)),
               bytes_text(sum(r.sent, LinkClass::inter_node)),
               bytes_text(sum(r.received, LinkClass::intra_node)),
               bytes_text(sum(r.received, LinkClass::inter_node)), bytes_text(r.buffer_bytes)});
  }
  return table.to_html();
}

void check_size(std::size_t spans) {
  require(spans <= most_spans,
          "--html: the timeline has {} spans or more, but a browser shows at most {}: "
          "take fewer --ranks, or --json",
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

void write_html(const std::filesystem::path& path, const plan::Plan& plan, const PlanCase& c,
                const simulator::Simulation& simulation) {
  const simulator::Timeline& timeline = simulation.timeline;
  check_size(timeline.computes.size() + timeline.transfers.size() + timeline.waits.size());
  const std::string title = fmt::format("{}, {}", plan.schedule, plan.pass_text());
  io::write_text_atomically(
      path,
      html::to_text({.title = title,
                     .heading = fmt::format("{} on {}", title, plan.problem.topology.to_string()),
                     .subtitle = fmt::format("{}, layout {}; {} plan steps; predicted by rates of {}",
                                             options::text_of(plan.problem), plan.problem.layout.to_string(),
                                             plan.steps, c.rates),
                     .body = html::facts(facts(summarize(simulation))) + legend(timeline) +
                             html::figure(svg_timeline(plan, simulation)) + rank_table(plan, simulation),
                     .program = "simulated by annulus-plan"}));
}

}  // namespace annulus::planner
