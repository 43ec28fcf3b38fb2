#include "attention/plan/needs/ring_window.hpp"

#include <algorithm>

namespace annulus::plan {
namespace {

/// Finds documents of positions that do not decrease.
class DocumentCursor {
 public:
  explicit DocumentCursor(const MaskRule& rule) : rule_(rule) {}
  /// MaskRule::key_range.
  KeyRange key_range(std::int64_t position, std::int64_t before, std::int64_t behind) {
    std::int64_t begin = position - std::min(before, position);
    std::int64_t end = position + std::min(behind, rule_.tokens - 1 - position) + 1;
    if (rule_.document_starts != nullptr) {
      while (rule_.document_starts[document_ + 1] <= position) ++document_;
      begin = std::max(begin, rule_.document_starts[document_]);
      end = std::min(end, rule_.document_starts[document_ + 1]);
    }
    return {begin, end, 1};
  }

 private:
  const MaskRule& rule_;
  std::int64_t document_ = 0;
};

/// Windows of rows that reach `before` positions before and `behind` positions behind themselves.
std::vector<RingWindow> find(const MaskRule& rule, std::int64_t stripe, int ranks, std::int64_t before,
                             std::int64_t behind) {
  std::vector<RingWindow> found(static_cast<std::size_t>(ranks));
  DocumentCursor first(rule), last(rule);
  int owner = 0, complete = 0;  // owners that meet all ranks
  std::int64_t number = 0;      // of the stripe
  for (std::int64_t begin = 0; begin < rule.tokens && complete < ranks; begin += stripe, ++number) {
    RingWindow& near = found[static_cast<std::size_t>(owner)];
    const bool had_all = near.before + near.behind >= ranks - 1;
    near.behind = std::max(near.behind, 0);
    const std::int64_t reached = first.key_range(begin, before, behind).begin;
    if (reached < begin - near.before * stripe) {
      near.before = static_cast<int>(std::min<std::int64_t>(number - reached / stripe, ranks - 1));
    }
    const std::int64_t end = std::min(begin + stripe, rule.tokens);
    const std::int64_t reached_last = last.key_range(end - 1, before, behind).end - 1;
    if (reached_last >= begin + (near.behind + 1) * stripe) {
      near.behind = static_cast<int>(std::min<std::int64_t>(reached_last / stripe - number, ranks - 1));
    }
    if (!had_all && near.before + near.behind >= ranks - 1) ++complete;
    owner = owner + 1 == ranks ? 0 : owner + 1;
  }
  return found;
}

}  // namespace

bool RingWindow::reaches(int owner, int begin, int end, int ranks) const {
  const int low = owner - before, high = owner + behind;
  for (const int turn : {-ranks, 0, ranks}) {
    if (std::max(begin + turn, low) <= std::min(end - 1 + turn, high)) return true;
  }
  return false;
}

RingWindows find_ring_windows(const Problem& problem) {
  MaskRule rule = problem.mask.rule();
  const Layout::Kind kind = problem.layout.kind();
  const bool dealt_out = kind == Layout::Kind::striped || kind == Layout::Kind::block_striped;
  if (!dealt_out || rule.dilation > 1 || rule.block_row_starts != nullptr || problem.grid.ulysses_degree > 1)
    return {};
  const std::int64_t stripe = std::min(problem.layout.stripe(), std::max<std::int64_t>(rule.tokens, 1));
  if (problem.positions > 0) rule.tokens = problem.positions;  // under a causal mask nothing reaches farther
  return {.of_queries = find(rule, stripe, problem.ranks(), rule.left, rule.right),
          .of_keys = find(rule, stripe, problem.ranks(), rule.right, rule.left)};
}

}  // namespace annulus::plan
