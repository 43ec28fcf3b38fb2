#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "attention/sparsity/sparse_case.hpp"

/// What patterns select by their definitions, in double precision.
namespace annulus::test {

/// Where documents begin and the sequence ends: without documents the sequence is one.
inline std::vector<std::int64_t> document_starts(const Mask& mask) {
  const auto starts = mask.document_starts();
  return starts.empty() ? std::vector{std::int64_t{0}, mask.tokens()}
                        : std::vector(starts.begin(), starts.end());
}

/// Verticals and slashes of a document in double precision.
struct ExactChoice {
  double recall = 0;
  bool joint = false;
  std::int64_t verticals = 0, slashes = 0, window = 64, sinks = 0, local = 1, dense_below = 0;

  std::string text(bool of_heads) const {
    const std::string budget = recall == 0 ? fmt::format("verticals={},slashes={}", verticals, slashes)
                                           : fmt::format("recall={}{}", recall, joint ? ",budget=joint" : "");
    return fmt::format("vertical-slash:{},window={},sinks={},local={},dense-below={},select={}", budget,
                       window, sinks, local, dense_below, of_heads ? "heads" : "kv-heads");
  }

  struct Items {
    std::vector<double> masses, worths;
    std::vector<bool> forced;
    void add(double mass, double worth, bool is_forced) {
      masses.push_back(mass);
      worths.push_back(worth);
      forced.push_back(is_forced);
    }
  };
  std::vector<bool> chosen(const Items& items, std::int64_t count) const {
    std::vector<std::size_t> order(items.masses.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](auto a, auto b) {
      return items.forced[a] != items.forced[b] ? items.forced[a] : items.worths[a] > items.worths[b];
    });
    const double target = recall > 0 ? recall * std::accumulate(items.masses.begin(), items.masses.end(), 0.0)
                                     : static_cast<double>(count);
    std::vector<bool> found(order.size());
    double reached = 0;
    for (const std::size_t item : order) {
      if (reached >= target && !items.forced[item]) break;
      reached += recall > 0 ? items.masses[item] : 1;
      found[item] = true;
    }
    return found;
  }

  /// Marks the selected pairs of the document [begin, end) of a list in (tokens, tokens).
  void select(const AttentionProblem& problem, std::int64_t list, std::int64_t lists, std::int64_t begin,
              std::int64_t end, std::vector<bool>& pairs) const {
    const auto& [tokens, width, batch, heads, kv_heads, v_width] = problem.shape;
    const std::int64_t first_block = begin / 64, blocks = (end - 1) / 64 - first_block + 1;
    std::vector<double> keys(end - begin), distances(blocks);
    struct Pair {
      std::int64_t key, distance;
      double mass;
    };
    std::vector<Pair> of_window;
    const std::int64_t group = heads / lists, b = list / lists;
    for (std::int64_t head = list % lists * group; head < (list % lists + 1) * group; ++head) {
      for (std::int64_t q = std::max(begin, end - window); q < end; ++q) {
        std::vector<double> p;
        for (std::int64_t k = begin; k <= q; ++k) {
          const double* const of_query = problem.q.row(b, head, q);
          const double* const of_key = problem.k.row(b, head / (heads / kv_heads), k);
          p.push_back(problem.scale * std::inner_product(of_query, of_query + width, of_key, 0.0));
        }
        const double highest = std::ranges::max(p);
        double sum = 0;
        for (double& value : p) sum += value = std::exp(value - highest);
        for (std::int64_t k = begin; k <= q; ++k) {
          keys[k - begin] += p[k - begin] / sum;
          distances[q / 64 - k / 64] += p[k - begin] / sum;
          of_window.push_back({k - begin, q / 64 - k / 64, p[k - begin] / sum});
        }
      }
    }
    if (joint) {
      std::vector<double> own_keys(keys.size()), own_distances(distances.size());
      for (const auto& [key, distance, mass] : of_window)
        (distances[distance] / 64 >= keys[key] ? own_distances[distance] : own_keys[key]) += mass;
      keys = own_keys;
      distances = own_distances;
    }
    Items of_keys, of_distances, of_both;
    const std::int64_t near = local > 0 ? (local - 1 + 63) / 64 + 1 : 0;
    for (std::size_t i = 0; i < keys.size(); ++i)
      of_keys.add(keys[i], keys[i], static_cast<std::int64_t>(i) < sinks);
    for (std::size_t d = 0; d < distances.size(); ++d)
      of_distances.add(distances[d], distances[d] / 64, static_cast<std::int64_t>(d) < near);
    std::vector<bool> columns, slash;
    if (joint) {
      of_both = of_keys;
      for (std::size_t d = 0; d < distances.size(); ++d)
        of_both.add(of_distances.masses[d], of_distances.worths[d], of_distances.forced[d]);
      const std::vector<bool> both = chosen(of_both, 0);
      columns.assign(both.begin(), both.begin() + std::ssize(keys));
      slash.assign(both.begin() + std::ssize(keys), both.end());
    } else {
      columns = chosen(of_keys, verticals);
      slash = chosen(of_distances, slashes);
    }
    const bool dense = end - begin < dense_below || blocks == 1;
    for (std::int64_t q = begin; q < end; ++q)
      for (std::int64_t k = begin; k <= q; ++k)
        pairs[q * tokens + k] = dense || columns[k - begin] || slash[q / 64 - k / 64];
  }
};

/// EXPECTs that two ranks select what the definition selects, and gives the selection. `masks`: of each
/// sequence, in the place of the problem's.
inline HostSelection expect_as_in_double_precision(const AttentionProblem& problem, const ExactChoice& choice,
                                                   bool of_heads,
                                                   const std::vector<std::string>& masks = {}) {
  const std::string text = choice.text(of_heads);
  const HostSelection selection =
      selected(problem, {.options = text, .topology = Topology::uniform(2, 2), .masks = masks});
  const std::int64_t tokens = problem.shape.tokens;
  for (std::int64_t list = 0; list < selection.batch * selection.lists; ++list) {
    const Mask mask = masks.empty()
                          ? problem.mask
                          : Mask::parse(masks[static_cast<std::size_t>(list / selection.lists)], tokens);
    const auto starts = document_starts(mask);
    std::vector<bool> expected(static_cast<std::size_t>(tokens * tokens));
    for (std::size_t i = 0; i + 1 < starts.size(); ++i)
      choice.select(problem, list, selection.lists, starts[i], starts[i + 1], expected);
    std::int64_t different = 0;
    for (std::int64_t q = 0; q < tokens; ++q)
      for (std::int64_t k = 0; k <= q; ++k)
        different += selection.allows(list, q, k) != expected[q * tokens + k] ? 1 : 0;
    EXPECT_EQ(different, 0) << text << ", list " << list;
  }
  return selection;
}

/// A problem's rows in double precision, of the documents [begin, end).
struct ExactRows {
  const AttentionProblem& problem;
  std::int64_t b, head, begin, end;

  const double* key(std::int64_t k) const {
    return problem.k.row(b, head / (problem.shape.heads / problem.shape.kv_heads), k);
  }
  double product(std::int64_t q, const std::vector<double>& key) const {
    return std::inner_product(key.begin(), key.end(), problem.q.row(b, head, q), 0.0);
  }
  double product(std::int64_t q, std::int64_t k) const {
    return std::inner_product(key(k), key(k) + problem.shape.head_dim, problem.q.row(b, head, q), 0.0);
  }
  /// The mean of the document's keys in [first, first + count).
  std::vector<double> mean(std::int64_t first, std::int64_t count) const {
    const std::int64_t from = std::max(first, begin), behind = std::min(first + count, end);
    std::vector<double> sum(static_cast<std::size_t>(problem.shape.head_dim));
    for (std::int64_t k = from; k < behind; ++k)
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += key(k)[c] / static_cast<double>(behind - from);
    return sum;
  }
};

/// The `count` best of items first … behind − 1 by their scores, of equal ones the first.
inline std::vector<std::int64_t> best_of(std::int64_t first, const std::vector<double>& scores,
                                         std::int64_t count) {
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), first);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return scores[a - first] > scores[b - first]; });
  order.resize(static_cast<std::size_t>(std::min(count, std::ssize(order))));
  return order;
}

/// Blocks of `of.head`'s query, by MoBA.
inline std::vector<std::int64_t> blocks_of_moba(const ExactRows& of, std::int64_t block, std::int64_t top,
                                                std::int64_t q) {
  const std::int64_t first = of.begin / block, own = q / block;
  std::vector<double> scores;
  for (std::int64_t b = first; b < own; ++b) scores.push_back(of.product(q, of.mean(b * block, block)));
  std::vector<std::int64_t> blocks = best_of(first, scores, top - 1);
  blocks.push_back(own);
  return blocks;
}

/// EXPECTs that the queries of a selection have exactly the blocks that blocks_of(rows of the document, list,
/// query) gives, of `block` tokens; but for a share of `ties`.
template <class BlocksOf>
void expect_blocks(const AttentionProblem& problem, const std::string& options, std::int64_t block,
                   const BlocksOf& blocks_of, double ties = 0, DType type = DType::f32) {
  const HostSelection selection =
      selected(problem, {.options = options, .topology = Topology::uniform(2, 2)}, type);
  const auto starts = document_starts(problem.mask);
  std::int64_t different = 0, all = 0;
  for (std::int64_t list = 0; list < selection.batch * selection.lists; ++list)
    for (std::size_t d = 0; d + 1 < starts.size(); ++d)
      for (std::int64_t q = starts[d]; q < starts[d + 1]; ++q) {
        const ExactRows rows{problem, list / selection.lists, list % selection.lists, starts[d],
                             starts[d + 1]};
        const std::vector<std::int64_t> blocks = blocks_of(rows, list % selection.lists, q);
        for (std::int64_t b = starts[d] / block; b <= q / block; ++b) {
          const bool expected = std::ranges::find(blocks, b) != blocks.end(),
                     found = selection.allows(list, q, std::max(b * block, starts[d]));
          different += found != expected ? 1 : 0;
          ++all;
        }
      }
  EXPECT_LE(different, ties * all) << options << ": of " << all;
}

/// InfLLM-V2.
struct InfLlm {
  std::int64_t block, top, sinks, window, stride;

  void expect(const AttentionProblem& problem, double ties = 0, DType type = DType::f32) const {
    expect_blocks(
        problem,
        fmt::format("infllm-v2:block={},top={},sinks={},window={},stride={}", block, top, sinks, window,
                    stride),
        block,
        [&](const ExactRows& rows, std::int64_t kv_head, std::int64_t q) { return blocks(rows, kv_head, q); },
        ties, type);
  }

  /// Blocks of the query of a kv head, by InfLLM-V2.
  std::vector<std::int64_t> blocks(ExactRows of, std::int64_t kv_head, std::int64_t q) const {
    const std::int64_t group = of.problem.shape.heads / of.problem.shape.kv_heads, own = q / block,
                       first = of.begin / block, first_key = of.begin / stride,
                       keys = (q + 1) / stride - 1;  // those that end by the query
    std::vector<double> sums(static_cast<std::size_t>(std::max<std::int64_t>(keys - first_key, 0)));
    for (of.head = kv_head * group; of.head < (kv_head + 1) * group; ++of.head) {
      std::vector<double> halves, p;  // a compressed key has two strides of keys
      for (std::int64_t half = first_key; half <= keys; ++half)
        halves.push_back(of.product(q, of.mean(half * stride, stride)));
      for (std::size_t i = 0; i < sums.size(); ++i)
        p.push_back(std::exp(0.5 * of.problem.scale * (halves[i] + halves[i + 1])));
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (std::size_t i = 0; i < p.size(); ++i) sums[i] += p[i] / sum;
    }
    const std::int64_t end = std::max(first, q < window ? 0 : (q + 1 - window) / block),
                       from = std::min(end, sinks > 0 ? ceil_divide(of.begin + sinks, block) : first);
    std::vector<double> scores;
    for (std::int64_t b = from; b < end; ++b) {
      double score = -infinity;
      for (std::int64_t key = std::max(b * block / stride - 1, first_key);
           key < std::min((b + 1) * block / stride, keys); ++key)
        score = std::max(score, sums[static_cast<std::size_t>(key - first_key)]);
      scores.push_back(score);
    }
    std::vector<std::int64_t> blocks = best_of(from, scores, top);
    for (std::int64_t b = first; b < from; ++b) blocks.push_back(b);
    for (std::int64_t b = end; b <= own; ++b) blocks.push_back(b);
    return blocks;
  }
};

}  // namespace annulus::test
