#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
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

  /// Of a document's keys and block distances; with `joint` each pair counts for one of the two.
  struct Masses {
    std::vector<double> keys, distances;
  };
  /// Of the document [begin, end) of a list.
  Masses masses(const AttentionProblem& problem, std::int64_t list, std::int64_t lists, std::int64_t begin,
                std::int64_t end) const {
    const auto& [tokens, width, batch, heads, kv_heads, v_width] = problem.shape;
    Masses of{std::vector<double>(end - begin), std::vector<double>((end - 1) / 64 - begin / 64 + 1)};
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
          of.keys[k - begin] += p[k - begin] / sum;
          of.distances[q / 64 - k / 64] += p[k - begin] / sum;
          of_window.push_back({k - begin, q / 64 - k / 64, p[k - begin] / sum});
        }
      }
    }
    if (!joint) return of;
    Masses once{std::vector<double>(of.keys.size()), std::vector<double>(of.distances.size())};
    for (const auto& [key, distance, mass] : of_window)
      (of.distances[distance] / 64 >= of.keys[key] ? once.distances[distance] : once.keys[key]) += mass;
    return once;
  }

  /// Marks the pairs of a document that its masses select in (tokens, tokens).
  void select(const Masses& of, std::int64_t begin, std::int64_t end, std::int64_t tokens,
              std::vector<bool>& pairs) const {
    const auto& [keys, distances] = of;
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
    const bool dense = end - begin < dense_below || distances.size() == 1;
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
      choice.select(choice.masses(problem, list, selection.lists, starts[i], starts[i + 1]), starts[i],
                    starts[i + 1], tokens, expected);
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
  /// The sum of the sizes of a product's terms.
  double size(std::int64_t q, const std::vector<double>& key) const {
    const double* const query = problem.q.row(b, head, q);
    double sum = 0;
    for (std::size_t c = 0; c < key.size(); ++c) sum += std::abs(query[c] * key[c]);
    return sum;
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

/// The blocks of a document up to a query's own, and how some of them are selected.
struct ScoredBlocks {
  std::int64_t first = 0;      ///< number of the first block
  std::vector<double> scores;  ///< of each block
  std::vector<bool> always;    ///< whether the query has it in any case
  std::int64_t best = 0;       ///< others that it has: those with the best scores, of equal ones the first
  double share = 0;            ///< in the place of `best`: as few as hold this share of all scores
  double rounding = 0;         ///< by which exact scores of blocks may differ that rounded ones swap

  ScoredBlocks(std::int64_t begin, std::int64_t own)
      : first(begin), scores(static_cast<std::size_t>(own - begin + 1)), always(scores.size()) {
    always.back() = true;
  }

  /// Which are selected by these scores.
  std::vector<bool> selected() const {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    if (share > 0) std::ranges::reverse(order);  // of equal ones the nearest
    std::ranges::stable_sort(order, [&](auto a, auto b) {
      return always[a] != always[b] ? always[a] : !always[a] && scores[a] > scores[b];
    });
    std::vector<bool> found(scores.size());
    double held = 0;
    std::int64_t others = 0;
    for (const std::size_t i : order) {
      if (!always[i] && (share > 0 ? held >= wanted() : others >= best)) break;
      found[i] = true;
      held += scores[i];
      others += always[i] ? 0 : 1;
    }
    return found;
  }

  /// How far these scores are from selecting `found`: the largest difference of scores that would have to be
  /// none. Infinity where no scores select it.
  double distance(const std::vector<bool>& found) const {
    double lowest = infinity, highest = -infinity, held = 0;
    std::int64_t others = 0, candidates = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (always[i] && !found[i]) return infinity;
      held += found[i] ? scores[i] : 0;
      if (always[i]) continue;
      ++candidates;
      others += found[i] ? 1 : 0;
      if (found[i]) lowest = std::min(lowest, scores[i]);
      if (!found[i]) highest = std::max(highest, scores[i]);
    }
    const double swapped = highest > lowest ? highest - lowest : 0;
    if (share == 0) return others == std::min(best, candidates) ? swapped : infinity;
    const double missing = wanted() - held, spare = others > 0 ? held - lowest - wanted() : 0;
    return std::max({swapped, missing, spare});
  }

 private:
  double wanted() const { return share * std::accumulate(scores.begin(), scores.end(), 0.0); }
};

/// MoBA.
struct ExactMoba {
  static constexpr bool of_queries = true;
  std::int64_t block, top;

  std::string text() const { return fmt::format("moba:block={},top={}", block, top); }
  ScoredBlocks blocks(const ExactRows& of, std::int64_t /*list*/, std::int64_t q) const {
    ScoredBlocks found(of.begin / block, q / block);
    for (std::size_t i = 0; i + 1 < found.scores.size(); ++i) {
      const std::vector<double> mean = of.mean((found.first + static_cast<std::int64_t>(i)) * block, block);
      found.scores[i] = of.product(q, mean);
      found.rounding = std::max(found.rounding, 1e-6 * of.size(q, mean));
    }
    found.best = top - 1;
    return found;
  }
};

/// XAttention, with a selection for each query head.
struct ExactXAttention {
  static constexpr bool of_queries = false;  ///< the queries of a block have the same blocks
  std::int64_t block, stride;
  double threshold;

  std::string text() const {
    return fmt::format("xattention:block={},stride={},threshold={}", block, stride, threshold);
  }
  ScoredBlocks blocks(const ExactRows& of, std::int64_t /*list*/, std::int64_t q) const {
    const std::int64_t row = q / block;
    ScoredBlocks found(of.begin / block, row);
    // Others than the document of the row's first token have the block on the diagonal alone.
    if (of.begin > row * block) return found;
    for (std::int64_t t = row * block / stride; t < (row + 1) * block / stride && t * stride < of.end; ++t) {
      std::vector<double> weights;
      for (std::int64_t c = of.begin / stride; c <= t; ++c) {
        double score = 0;
        std::int64_t pairs = 0;
        for (std::int64_t o = 0; o < stride; ++o) {
          const std::int64_t query = t * stride + o, k = c * stride + stride - 1 - o;
          if (k > query || k < of.begin || query >= of.end) continue;
          score += of.product(query, k);
          ++pairs;
        }
        const auto parts = static_cast<double>(c < t ? stride : pairs);
        weights.push_back(parts > 0 ? std::exp(of.problem.scale * score / parts) : 0);
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (std::size_t i = 0; i < weights.size() && sum > 0; ++i)
        found.scores[(of.begin / stride + static_cast<std::int64_t>(i)) * stride / block - found.first] +=
            weights[i] / sum;
    }
    found.share = threshold;
    // Tensor cores cut off bits where others round.
    found.rounding = (on_host ? 1e-6 : 1e-5) * std::accumulate(found.scores.begin(), found.scores.end(), 0.0);
    return found;
  }
};

/// InfLLM-V2, of compressed keys that are rounded as it is defined.
struct ExactInfLlm {
  static constexpr bool of_queries = true;
  std::int64_t block, top, sinks, window, stride;
  DType type = DType::f32;

  std::string text() const {
    return fmt::format("infllm-v2:block={},top={},sinks={},window={},stride={}", block, top, sinks, window,
                       stride);
  }
  ScoredBlocks blocks(ExactRows of, std::int64_t kv_head, std::int64_t q) const {
    const std::int64_t group = of.problem.shape.heads / of.problem.shape.kv_heads,
                       first_key = of.begin / stride, keys = (q + 1) / stride - 1;  // those that end by q
    std::vector<double> sums(static_cast<std::size_t>(std::max<std::int64_t>(keys - first_key, 0)));
    of.head = kv_head * group;
    std::vector<std::vector<double>> compressed;
    for (std::int64_t key = first_key; key < keys; ++key) compressed.push_back(compressed_key(of, key));
    for (; of.head < (kv_head + 1) * group; ++of.head) {
      std::vector<double> p;
      for (const auto& key : compressed) p.push_back(std::exp(of.problem.scale * of.product(q, key)));
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (std::size_t i = 0; i < p.size(); ++i) sums[i] += p[i] / sum;
    }
    ScoredBlocks found(of.begin / block, q / block);
    for (std::size_t i = 0; i < found.scores.size(); ++i) {
      const std::int64_t b = found.first + static_cast<std::int64_t>(i);
      found.always[i] = (sinks > 0 && b * block < of.begin + sinks) || (b + 1) * block > q + 1 - window;
      if (found.always[i]) continue;
      found.scores[i] = -infinity;
      for (std::int64_t key = std::max(b * block / stride - 1, first_key);
           key < std::min((b + 1) * block / stride, keys); ++key)
        found.scores[i] = std::max(found.scores[i], sums[static_cast<std::size_t>(key - first_key)]);
    }
    found.best = top;
    found.rounding = on_host ? 1e-6 : 1e-5;  // tensor cores cut off bits where others round
    return found;
  }

 private:
  /// Two strides of keys, of the document alone, whose means are of fp32.
  std::vector<double> compressed_key(const ExactRows& of, std::int64_t key) const {
    std::vector<double> half = of.mean(key * stride, stride), next = of.mean((key + 1) * stride, stride);
    with_storage_type(type, [&]<class T>(T) {
      for (std::size_t c = 0; c < half.size(); ++c)
        half[c] =
            static_cast<float>(T(0.5f * static_cast<float>(half[c]) + 0.5f * static_cast<float>(next[c])));
    });
    return half;
  }
};

/// Calls f(list, query, the blocks by the definition, which of them a selection has) for all queries. `by` is
/// one of the patterns above.
template <class By, class F>
void for_each_query(const AttentionProblem& problem, const HostSelection& selection, const By& by,
                    const F& f) {
  const auto starts = document_starts(problem.mask);
  for (std::int64_t list = 0; list < selection.batch * selection.lists; ++list)
    for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
      const ExactRows rows{problem, list / selection.lists, list % selection.lists, starts[d], starts[d + 1]};
      std::optional<ScoredBlocks> blocks;
      for (std::int64_t q = starts[d]; q < starts[d + 1]; ++q) {
        if (By::of_queries || q % by.block == 0 || !blocks)
          blocks = by.blocks(rows, list % selection.lists, q);
        std::vector<bool> found;
        for (std::int64_t b = blocks->first; b <= q / by.block; ++b)
          found.push_back(selection.allows(list, q, std::max(b * by.block, starts[d])));
        f(list, q, *blocks, found);
      }
    }
}

}  // namespace annulus::test
