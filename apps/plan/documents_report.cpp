#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>

#include "attention/plan/needs/rank_meetings.hpp"
#include "attention/plan/needs/shard_pairs.hpp"
#include "base/units.hpp"
#include "common/text.hpp"
#include "plan/report.hpp"

namespace annulus::planner {

namespace {

constexpr int most_ranks = 32;  // that are shown
constexpr int cells = 64;       // of a drawing

/// What a rank has on a layout.
struct RankLine {
  PositionMap rows;
  std::int64_t runs = 0, whole = 0, shared = 0;  ///< documents that it holds alone, and with others
  plan::Traffic traffic;
};

/// Rows of keys that ranks need of one another, and those of all-gather's messages that bring them.
struct KeyRows {
  std::int64_t needed = 0, in_messages = 0;
};
/// All ranks on a layout.
struct LayoutLines {
  Layout layout;  ///< owns what rows of ranks borrow
  std::vector<RankLine> ranks;
  double mean_pairs = 0;
  std::int64_t most_pairs = 0;
  std::int64_t sent = 0, sent_between = 0;  ///< bytes of all ranks, and those that go to other nodes
  std::int64_t most_sent = 0, most_sent_between = 0;  ///< of the rank that sends most of them
  KeyRows key_rows;
};

void count_documents(const Mask& mask, RankLine& line) {
  const std::span<const std::int64_t> starts = mask.document_starts();  // and the end
  for (std::int64_t row = 0, end; row < line.rows.count; row = end) {
    const auto next = std::ranges::upper_bound(starts, line.rows(row));
    end = line.rows.rows_below(*next);
    ++(end - row == *next - *(next - 1) ? line.whole : line.shared);
  }
}

/// Rows of one rank's keys that some query of another one attends to.
std::int64_t attended_rows(const Mask& mask, const PositionMap& queries, const PositionMap& keys) {
  const std::span<const std::int64_t> starts = mask.document_starts();
  std::int64_t rows = 0, row = 0;
  while (row < keys.count) {
    const auto next_document = std::ranges::upper_bound(starts, keys(row));
    std::int64_t end = keys.end_of_run(row);
    if (next_document != starts.end()) end = std::min(end, keys.rows_below(*next_document));
    rows += plan::attended_keys(mask, queries, keys.slice({row, end})).size();
    row = end;
  }
  return rows;
}

/// Rows of keys that ranks need of each other; nothing unless the layout is cut for the documents.
KeyRows key_rows(const plan::Problem& problem) {
  const plan::RankMeetings meetings(problem);
  const plan::ShardPairs pairs(problem);
  KeyRows rows;
  if (!meetings.known()) return rows;
  const int ranks = problem.ranks();
  for (int of = 0; of < ranks; ++of) {
    const PositionMap queries = problem.shard(of);
    for (int from = meetings.next_of_queries(of, 0, ranks); from < ranks;
         from = meetings.next_of_queries(of, from + 1, ranks)) {
      if (from == of) continue;
      const PositionMap keys = problem.shard(from);
      rows.needed += attended_rows(problem.mask, queries, keys);
      for (const plan::ActiveRows& part : pairs.parts(of, from)) rows.in_messages += part.kv.size();
    }
  }
  return rows;
}

LayoutLines lines_of(const PlanCase& c, const Layout& layout) {
  plan::Problem problem = c.problem;
  problem.layout = layout;
  const plan::Plan plan = plan::make_plan(c.schedule, problem, c.pass, "--schedule");
  LayoutLines lines{.layout = plan.problem.layout, .ranks = {}, .key_rows = key_rows(plan.problem)};
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    RankLine& line = lines.ranks.emplace_back();
    line.rows = plan.problem.owned(rank);
    for (std::int64_t row = 0; row < line.rows.count; row = line.rows.end_of_run(row)) ++line.runs;
    count_documents(problem.mask, line);
    line.traffic = plan::traffic(plan, rank);
    lines.mean_pairs += static_cast<double>(line.traffic.pairs) / problem.ranks();
    lines.most_pairs = std::max(lines.most_pairs, line.traffic.pairs);
    lines.sent += line.traffic.sent_bytes;
    lines.sent_between += line.traffic.sent_bytes_inter_node;
    lines.most_sent = std::max(lines.most_sent, line.traffic.sent_bytes);
    lines.most_sent_between = std::max(lines.most_sent_between, line.traffic.sent_bytes_inter_node);
  }
  return lines;
}

/// The sequence from left to right: what the rank holds all of is #, what it holds nothing of a dot.
std::string drawing(const PositionMap& rows, std::int64_t tokens) {
  constexpr std::string_view shades = ".-+*#";
  std::string text;
  for (std::int64_t cell = 0; cell < cells; ++cell) {
    const std::int64_t begin = tokens * cell / cells, end = tokens * (cell + 1) / cells;
    const std::int64_t held = rows.rows_below(end) - rows.rows_below(begin);
    const auto shade =
        held == 0 || end == begin ? 0 : 1 + std::min<std::int64_t>(3, 4 * held / (end - begin));
    text += shades[static_cast<std::size_t>(shade)];
  }
  return text;
}

std::string times_mean(double pairs, double mean) {
  return fmt::format("{:.3f}", mean > 0 ? pairs / mean : 1);
}

std::string text_of_sent(const LayoutLines& lines, int nodes) {
  if (nodes == 1)
    return fmt::format("all ranks send {}, the busiest sender {}", bytes_text(lines.sent),
                       bytes_text(lines.most_sent));
  return fmt::format(
      "all ranks send {} inside nodes and {} between nodes; the busiest senders {} in all and {} between "
      "nodes",
      bytes_text(lines.sent - lines.sent_between), bytes_text(lines.sent_between),
      bytes_text(lines.most_sent), bytes_text(lines.most_sent_between));
}

}  // namespace

std::string documents_report(const PlanCase& c) {
  const bool asked_balanced = c.problem.layout.kind() == Layout::Kind::balanced;
  const auto shown = std::min(c.problem.ranks(), most_ranks);
  std::string text =
      fmt::format("{} documents in {} tokens, {} {}\n\n", c.problem.mask.document_starts().size() - 1,
                  c.problem.mask.tokens(), c.schedule, plan::name_of(c.pass));
  std::vector<LayoutLines> layouts;
  try {
    layouts.push_back(lines_of(c, Layout(Layout::Kind::balanced)));
  } catch (const Error& error) {
    if (asked_balanced) throw;
    text += fmt::format("not on the layout balanced: {}\n\n", error.what());
  }
  layouts.push_back(lines_of(c, asked_balanced ? Layout(Layout::Kind::zigzag) : c.problem.layout));
  for (const LayoutLines& lines : layouts) {
    std::vector<std::vector<std::string>> table = {{"layout " + lines.layout.to_string(), "rows", "runs",
                                                    "whole", "shared", "pairs", "sent", "received",
                                                    "rows in the sequence, from left to right"}};
    for (int rank = 0; rank < shown; ++rank) {
      const RankLine& line = lines.ranks[static_cast<std::size_t>(rank)];
      table.push_back({fmt::format("rank {}", rank), fmt::format("{}", line.rows.count),
                       fmt::format("{}", line.runs), fmt::format("{}", line.whole),
                       fmt::format("{}", line.shared),
                       times_mean(static_cast<double>(line.traffic.pairs), lines.mean_pairs),
                       bytes_text(line.traffic.sent_bytes), bytes_text(line.traffic.received_bytes),
                       drawing(line.rows, c.problem.mask.tokens())});
    }
    text += app::table_text(table);
    if (shown < c.problem.ranks()) text += fmt::format("and {} more ranks\n", c.problem.ranks() - shown);
    text += fmt::format("busiest rank: {} times the mean pairs\n{}\n",
                        times_mean(static_cast<double>(lines.most_pairs), lines.mean_pairs),
                        text_of_sent(lines, c.problem.topology.nodes()));
    if (const auto& [needed, in_messages] = lines.key_rows; needed > 0)
      text += fmt::format(
          "ranks need {:.2f} times the sequence's keys of one another; all-gather's messages have {:.2f} % "
          "more\n",
          static_cast<double>(needed) / static_cast<double>(c.problem.mask.tokens()),
          100 * static_cast<double>(in_messages - needed) / static_cast<double>(needed));
    text += '\n';
  }
  return text;
}

}  // namespace annulus::planner
