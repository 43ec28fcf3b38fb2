#include "plan/timeline.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <vector>

#include "html/element.hpp"
#include "html/timeline.hpp"

#include <annulus/base/units.hpp>

namespace annulus::planner {
namespace {

using html::Colour;
using html::Span;
using plan::Tensor;
using simulate::ComputeSpan;
using simulate::LinkClass;
using simulate::TransferSpan;

/// What spans are coloured by.
enum class Kind : std::uint8_t { own, remote, wait, kv, queries, statistics, out, dkv, dq };
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
Colour colour_of(Kind kind) {
  return looks[static_cast<std::size_t>(kind)].colour;
}

Kind kind_of(const ComputeSpan& c) {
  return c.q_shard == c.rank && c.kv_shard == c.rank ? Kind::own : Kind::remote;
}

Kind kind_of(const TransferSpan& t) {
  switch (t.tensor) {
    case Tensor::k:
    case Tensor::v:
      return Kind::kv;
    case Tensor::q:
    case Tensor::d_o:
      return Kind::queries;
    case Tensor::lse:
    case Tensor::d:
      return Kind::statistics;
    case Tensor::o:
      return Kind::out;
    case Tensor::dk:
    case Tensor::dv:
      return Kind::dkv;
    case Tensor::dq:
      return Kind::dq;
  }
  return Kind::kv;
}

Span span_of(const simulate::WaitSpan& w) {
  return {.start = w.start,
          .end = w.end,
          .colour = colour_of(Kind::wait),
          .label = "",
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

/// As long as it is on the link of its sender.
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

/// What a rank does, in the order of the simulation.
struct RankSpans {
  std::vector<const simulate::WaitSpan*> waits;
  std::vector<const ComputeSpan*> computes;
  std::array<std::vector<const TransferSpan*>, simulate::link_class_count> sent;
};

std::vector<RankSpans> by_rank(const simulate::Timeline& timeline, int ranks) {
  std::vector<RankSpans> all(static_cast<std::size_t>(ranks));
  const auto of = [&all](int rank) -> RankSpans& { return all[static_cast<std::size_t>(rank)]; };
  for (const simulate::WaitSpan& w : timeline.waits) of(w.rank).waits.push_back(&w);
  for (const ComputeSpan& c : timeline.computes) of(c.rank).computes.push_back(&c);
  for (const TransferSpan& t : timeline.transfers)
    of(t.from).sent[static_cast<std::size_t>(t.link)].push_back(&t);
  return all;
}

void draw(html::Timeline& drawing, const plan::Problem& problem, const RankSpans& rank) {
  std::vector<Span> spans;
  for (const simulate::WaitSpan* w : rank.waits) spans.push_back(span_of(*w));
  for (const ComputeSpan* c : rank.computes) spans.push_back(span_of(*c, problem));
  drawing.add_lane("compute", spans);
  for (const auto& [link, name] : {std::pair(LinkClass::intra_node, "to its node"),
                                   std::pair(LinkClass::inter_node, "to other nodes")}) {
    const auto& transfers = rank.sent[static_cast<std::size_t>(link)];
    if (transfers.empty()) continue;
    spans.clear();
    for (const TransferSpan* t : transfers) spans.push_back(span_of(*t));
    drawing.add_stacked_lane(name, std::move(spans));
  }
}

}  // namespace

std::string legend(const simulate::Timeline& timeline) {
  std::array<bool, looks.size()> used{};
  for (const ComputeSpan& c : timeline.computes) used[static_cast<std::size_t>(kind_of(c))] = true;
  for (const TransferSpan& t : timeline.transfers) used[static_cast<std::size_t>(kind_of(t))] = true;
  used[static_cast<std::size_t>(Kind::wait)] = !timeline.waits.empty();
  std::vector<html::Key> keys;
  for (std::size_t i = 0; i < looks.size(); ++i)
    if (used[i]) keys.push_back({looks[i].colour, looks[i].meaning});
  return html::legend(keys);
}

std::string svg_timeline(const plan::Plan& plan, const simulate::Simulation& simulation) {
  const Topology& topology = plan.problem.topology;
  const std::vector<RankSpans> ranks = by_rank(simulation.timeline, plan.problem.ranks());
  html::Timeline drawing(simulation.time);
  for (int node = 0; node < topology.nodes(); ++node) {
    if (topology.nodes() > 1) drawing.add_group(fmt::format("node {}", node));
    for (int i = 0; i < topology.ranks_on(node); ++i) {
      const int rank = topology.first_rank(node) + i;
      drawing.add_row(fmt::format("rank {}", rank));
      draw(drawing, plan.problem, ranks[static_cast<std::size_t>(rank)]);
    }
  }
  return drawing.to_svg(fmt::format("Timeline of {}, {}", plan.schedule, plan.pass_text()));
}

}  // namespace annulus::planner
