#include <annulus/prediction/simulator/selected.hpp>

#include <algorithm>
#include <iterator>
#include <limits>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "attention/sequence/pair_count.hpp"

namespace annulus::simulator {

SelectedBlocks::SelectedBlocks(std::int64_t tokens, std::int64_t block,
                               const std::vector<std::vector<std::int64_t>>& distances)
    : tokens_(tokens), block_(block) {
  for (std::vector<std::int64_t> of_list : distances) {
    std::ranges::sort(of_list, std::greater<>());  // columns of a row increase
    std::vector<std::int64_t>&starts = starts_.emplace_back(), &columns = columns_.emplace_back();
    for (std::int64_t row = 0; row < ceil_divide(tokens, block); ++row) {
      starts.push_back(std::ssize(columns));
      for (const std::int64_t distance : of_list)
        if (distance <= row) columns.push_back(row - distance);
    }
    starts.push_back(std::ssize(columns));
  }
}

SelectedBlocks SelectedBlocks::of_rows(std::int64_t tokens, std::int64_t block,
                                       const std::vector<std::vector<std::vector<std::int64_t>>>& columns) {
  SelectedBlocks made(tokens, block);
  for (const std::vector<std::vector<std::int64_t>>& of_list : columns) {
    std::vector<std::int64_t>&starts = made.starts_.emplace_back(), &all = made.columns_.emplace_back();
    for (const std::vector<std::int64_t>& of_row : of_list) {
      starts.push_back(std::ssize(all));
      all.insert(all.end(), of_row.begin(), of_row.end());
    }
    starts.push_back(std::ssize(all));
  }
  return made;
}

std::int64_t SelectedBlocks::list_pairs(std::size_t list, const PositionMap& q, const PositionMap& k) const {
  MaskRule rule;
  rule.tokens = tokens_;
  rule.right = 0;
  rule.block_size = block_;
  rule.block_row_starts = starts_[list].data();
  rule.block_columns = columns_[list].data();
  return detail::count_pairs(rule, q, k, std::numeric_limits<std::int64_t>::max());
}

std::int64_t SelectedBlocks::pairs(const plan::Problem& problem, const plan::Compute& compute) const {
  require(problem.mask.tokens() == tokens_,
          "a selection of {} tokens was given for a sequence of {}: give the length of the selection",
          tokens_, problem.mask.tokens());
  require(problem.heads % lists() == 0,
          "{} heads cannot share a selection of {} lists: give a multiple of them", problem.heads, lists());
  const PositionMap q = problem.shard(compute.q_shard).slice(compute.q_rows),
                    k = problem.shard(compute.kv_shard).slice(compute.kv_rows);
  const int group = problem.heads / lists();
  std::int64_t pairs = 0;
  for (int head = compute.heads.begin; head < compute.heads.end;) {  // heads of a list have the same pairs
    const int next = std::min((head / group + 1) * group, compute.heads.end);
    pairs += (next - head) * list_pairs(static_cast<std::size_t>(head / group), q, k);
    head = next;
  }
  return pairs;
}

double SelectedBlocks::density() const {
  const PositionMap all = Layout().shard(tokens_, 1, 0);
  double selected = 0;
  for (std::size_t list = 0; list < starts_.size(); ++list)
    selected += static_cast<double>(list_pairs(list, all, all));
  const auto tokens = static_cast<double>(tokens_);
  return selected / (0.5 * tokens * (tokens + 1) * lists());
}

Selected SelectedBlocks::selected() const {
  return {density(), [this](const plan::Problem& problem, const plan::Compute& compute) {
            return pairs(problem, compute);
          }};
}

}  // namespace annulus::simulator
