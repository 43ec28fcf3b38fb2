#include "plan/svg_timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "common/html.hpp"
#include "common/text.hpp"

namespace annulus::planner {
namespace {

using app::bytes_text;
using app::escaped;
using app::tick_distance;
using plan::Tensor;
using simulate::ComputeSpan;
using simulate::LinkClass;
using simulate::TransferSpan;

// Pixels.
constexpr double label_width = 170, plot_width = 1180, right_margin = 24;
constexpr double axis_height = 34, node_height = 22, compute_height = 18;
constexpr double row_height = 10, least_row_height = 1.5, most_lane_height = 72;
constexpr double lane_gap = 2, rank_gap = 8;
constexpr double letter_width = 5.6;  // at the size of labels in bars

/// What spans are coloured by.
enum class Kind : std::uint8_t { own, foreign, wait, kv, queries, statistics, out, dkv, dq };
struct Look {
  const char* colour;
  const char* meaning;
};
constexpr std::array<Look, 9> looks = {{{"#6f9bd1", "compute on a rank's own shards"},
                                        {"#3f74b8", "compute with a shard that came"},
                                        {"#f3c9c9", "waiting: exposed communication"},
                                        {"#2a9d8f", "K, V"},
                                        {"#7fb069", "Q, dO"},
                                        {"#a9a9a9", "LSE, D"},
                                        {"#9b6bcc", "O"},
                                        {"#f0a04b", "dK, dV"},
                                        {"#d9573b", "dQ"}}};
const Look& look(Kind kind) {
  return looks[static_cast<std::size_t>(kind)];
}

Kind kind_of(const ComputeSpan& c) {
  return c.q_shard == c.rank && c.kv_shard == c.rank ? Kind::own : Kind::foreign;
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

/// Transfers of one lane, each with the row in which no other is on the link at its time.
struct Lane {
  std::vector<std::pair<const TransferSpan*, int>> spans;
  int rows = 0;

  double height() const { return std::clamp(rows * row_height, row_height, most_lane_height); }
};

Lane arrange(std::vector<const TransferSpan*> transfers) {
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const TransferSpan* a, const TransferSpan* b) { return a->start < b->start; });
  Lane lane;
  std::vector<double> free_from;
  for (const TransferSpan* t : transfers) {
    const auto row =
        std::find_if(free_from.begin(), free_from.end(), [t](double end) { return end <= t->start; });
    lane.spans.emplace_back(t, static_cast<int>(row - free_from.begin()));
    if (row == free_from.end()) {
      free_from.push_back(t->left);
    } else {
      *row = t->left;
    }
  }
  lane.rows = static_cast<int>(free_from.size());
  return lane;
}

/// Draws from top to bottom.
class Drawing {
 public:
  Drawing(const plan::Plan& plan, const simulate::Simulation& simulation)
      : plan_(plan), simulation_(simulation), length_(std::max(simulation.time * 1e3, 1e-9)) {
    const auto ranks = static_cast<std::size_t>(plan.problem.ranks());
    sent_.resize(ranks);
    computes_.resize(ranks);
    waits_.resize(ranks);
    const simulate::Timeline& timeline = simulation.timeline;
    for (const TransferSpan& t : timeline.transfers)
      sent_[static_cast<std::size_t>(t.from)][static_cast<std::size_t>(t.link)].push_back(&t);
    for (const ComputeSpan& c : timeline.computes) computes_[static_cast<std::size_t>(c.rank)].push_back(&c);
    for (const simulate::WaitSpan& w : timeline.waits) waits_[static_cast<std::size_t>(w.rank)].push_back(&w);
  }

  std::string run() {
    const Topology& topology = plan_.problem.topology;
    y_ = axis_height;
    for (int node = 0; node < topology.nodes(); ++node) {
      if (topology.nodes() > 1) draw_node(node);
      for (int i = 0; i < topology.ranks_on(node); ++i) draw_rank(topology.first_rank(node) + i);
    }
    const double width = label_width + plot_width + right_margin;
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<title>Timeline of {2}, {3}</title>\n{4}{5}</svg>\n",
        width, y_ + 6, escaped(plan_.schedule), name_of(plan_.pass), axis(), body_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), text, std::forward<Args>(args)...);
  }

  double x(double seconds) const { return label_width + seconds * 1e3 / length_ * plot_width; }

  std::string axis() const {
    std::string text;
    const double step = tick_distance(length_);
    const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
    for (int i = 0; i * step <= length_ * (1 + 1e-9); ++i) {
      const double at = x(i * step * 1e-3);
      fmt::format_to(std::back_inserter(text),
                     "<line class=\"grid\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1:.0f}\" y2=\"{2:.1f}\"/>"
                     "<text class=\"tick\" x=\"{0:.2f}\" y=\"{3:.0f}\">{4:.{5}f}</text>\n",
                     at, axis_height - 8, y_, axis_height - 13, i * step, digits);
    }
    fmt::format_to(std::back_inserter(text), "<text class=\"lane\" x=\"{:.0f}\" y=\"{:.0f}\">ms</text>\n",
                   label_width - 16, axis_height - 13);
    return text;
  }

  void draw_node(int node) {
    put("<text class=\"node\" x=\"4\" y=\"{:.1f}\">node {}</text>"
        "<line class=\"node\" x1=\"0\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
        y_ + 15, node, label_width + plot_width, y_ + 1, y_ + 1);
    y_ += node_height;
  }

  void draw_rank(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    put("<text class=\"rank\" x=\"4\" y=\"{:.1f}\">rank {}</text>", y_ + 13, rank);
    lane_label("compute", compute_height);
    for (const simulate::WaitSpan* w : waits_[r]) {
      bar(Kind::wait, w->start, w->end, y_, compute_height, "",
          fmt::format("rank {} waits before step {}", rank, w->step));
    }
    for (const ComputeSpan* c : computes_[r]) draw(*c);
    y_ += compute_height + lane_gap;
    draw_sent("to its node", sent_[r][static_cast<std::size_t>(LinkClass::intra_node)]);
    draw_sent("to other nodes", sent_[r][static_cast<std::size_t>(LinkClass::inter_node)]);
    y_ += rank_gap;
  }

  void lane_label(std::string_view text, double height) {
    put("<text class=\"lane\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>"
        "<rect class=\"lane\" x=\"{:.0f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\"/>\n",
        label_width - 8, y_ + height / 2 + 3.5, text, label_width, y_, plot_width, height);
  }

  void draw(const ComputeSpan& c) {
    const plan::Problem& p = plan_.problem;
    std::string title =
        fmt::format("rank {}, step {}: queries of {}, keys of {}, ", c.rank, c.step, c.q_shard, c.kv_shard);
    if (c.heads.size() < p.heads) title += fmt::format("heads [{}, {}), ", c.heads.begin, c.heads.end);
    title += fmt::format("{} pairs a head", c.pairs);
    bar(kind_of(c), c.start, c.end, y_, compute_height, fmt::format("q{} k{}", c.q_shard, c.kv_shard), title);
  }

  void draw_sent(std::string_view label, const std::vector<const TransferSpan*>& transfers) {
    if (transfers.empty()) return;
    const Lane lane = arrange(transfers);
    const double height = lane.height(), row = std::max(height / lane.rows, least_row_height);
    lane_label(label, row * lane.rows);
    for (const auto& [t, index] : lane.spans) {
      bar(kind_of(*t), t->start, t->left, y_ + index * row, row,
          fmt::format("{} {}", name_of(t->tensor), t->owner),
          fmt::format("{} of shard {}: rank {} to rank {}, {}, {}, posted in step {}, there at {:.4g} ms",
                      name_of(t->tensor), t->owner, t->from, t->to, bytes_text(t->bytes), name_of(t->channel),
                      t->step, t->end * 1e3));
    }
    y_ += row * lane.rows + lane_gap;
  }

  /// A span, with its label where there is room for it.
  void bar(Kind kind, double start, double end, double y, double height, std::string_view label,
           std::string_view title) {
    const double left = x(start), width = std::max(x(end) - left, 0.4);
    put("<g><title>{}; {:.4g} to {:.4g} ms ({:.4g} ms)</title>"
        "<rect class=\"bar\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>",
        escaped(title), start * 1e3, end * 1e3, (end - start) * 1e3, left, y, width, height,
        look(kind).colour);
    const bool is_high = height >= compute_height;
    const double letters = static_cast<double>(label.size()) * letter_width;
    if (!label.empty() && height >= row_height && letters + 4 <= width) {
      put("<text class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>", is_high ? "in" : "in small",
          left + width / 2, y + height / 2 + (is_high ? 3.5 : 2.8), label);
    }
    put("</g>\n");
  }

  const plan::Plan& plan_;
  const simulate::Simulation& simulation_;
  double length_;  // ms
  double y_ = 0;
  std::string body_;
  std::vector<std::array<std::vector<const TransferSpan*>, simulate::link_class_count>> sent_;  // by rank
  std::vector<std::vector<const ComputeSpan*>> computes_;
  std::vector<std::vector<const simulate::WaitSpan*>> waits_;
};

}  // namespace

std::string legend(const simulate::Timeline& timeline) {
  std::array<bool, looks.size()> used{};
  for (const ComputeSpan& c : timeline.computes) used[static_cast<std::size_t>(kind_of(c))] = true;
  for (const TransferSpan& t : timeline.transfers) used[static_cast<std::size_t>(kind_of(t))] = true;
  used[static_cast<std::size_t>(Kind::wait)] = !timeline.waits.empty();
  std::string text;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    if (!used[i]) continue;
    fmt::format_to(std::back_inserter(text), "<span class=\"key\"><i style=\"background:{}\"></i>{}</span>\n",
                   looks[i].colour, looks[i].meaning);
  }
  return text;
}

std::string svg_timeline(const plan::Plan& plan, const simulate::Simulation& simulation) {
  return Drawing(plan, simulation).run();
}

}  // namespace annulus::planner
