// Packed documents: each has a selection of its own, wherever its rows lie.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/sparsity/sparse_case.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

/// Documents of one token, of less than a block, of one, of several, at and off the blocks of the sequence.
constexpr const char* documents = "documents:0,1,64,65,199,206,320,323";
constexpr AttentionShape of_documents{.tokens = 555, .head_dim = 16, .batch = 2, .heads = 4, .kv_heads = 2};

TEST(PackedDocuments, HaveTheSameSelectionForEveryLayoutScheduleAndNumberOfRanks) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto problem = AttentionProblem::random(of_documents, documents, type, 2.0);
    for (const char* options :
         {"vertical-slash:recall=0.6,window=40,sinks=3", "vertical-slash:recall=0.8,window=100,select=heads",
          "vertical-slash:recall=0.7,budget=joint", "vertical-slash:verticals=12,slashes=2,dense-below=130",
          "xattention:block=64,stride=16,threshold=0.6",
          "xattention:block=128,stride=8,threshold=0.5,dense-below=100", "moba:block=64,top=2",
          "infllm-v2:block=64,top=1,sinks=3,window=40,stride=8"}) {
      const HostSelection one = selected(problem, {.options = options}, type);
      for (const auto& [ranks, schedule, layout] : {std::tuple{2, "burst", "block-striped:64"},
                                                    {3, "ring", "zigzag"},
                                                    {4, "ulysses", "contiguous"},
                                                    {7, "all-gather", "striped"}}) {
        if (schedule == std::string("ulysses") && type == DType::bf16) continue;
        EXPECT_EQ(selected(problem,
                           {options, Topology::uniform(ranks, ranks), Layout::parse(layout), schedule}, type),
                  one)
            << options << ", " << ranks << " ranks, " << schedule << ", " << layout;
      }
    }
  }
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
    const std::int64_t near = (local - 1 + 63) / 64 + 1;
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

void expect_as_in_double_precision(const AttentionProblem& problem, const ExactChoice& choice, bool of_heads,
                                   std::vector<std::string> masks) {
  const std::string text = choice.text(of_heads);
  const HostSelection selection =
      selected(problem, {.options = text, .topology = Topology::uniform(2, 2), .masks = masks});
  const std::int64_t tokens = problem.shape.tokens;
  for (std::int64_t list = 0; list < selection.batch * selection.lists; ++list) {
    const Mask mask = masks.empty()
                          ? problem.mask
                          : Mask::parse(masks[static_cast<std::size_t>(list / selection.lists)], tokens);
    const auto starts = mask.document_starts();
    std::vector<bool> expected(static_cast<std::size_t>(tokens * tokens));
    for (std::size_t i = 0; i + 1 < starts.size(); ++i)
      choice.select(problem, list, selection.lists, starts[i], starts[i + 1], expected);
    std::int64_t different = 0;
    for (std::int64_t q = 0; q < tokens; ++q)
      for (std::int64_t k = 0; k <= q; ++k)
        different += selection.allows(list, q, k) != expected[q * tokens + k] ? 1 : 0;
    EXPECT_EQ(different, 0) << text << ", list " << list;
  }
}

TEST(PackedDocuments, SelectAsInDoublePrecision) {
  const auto problem = AttentionProblem::random(of_documents, documents, DType::f32, 2.0);
  int number = 0;
  for (const ExactChoice& choice :
       {ExactChoice{.recall = 0.5}, ExactChoice{.recall = 0.8, .window = 150, .sinks = 3, .local = 66},
        ExactChoice{.recall = 0.6, .joint = true, .window = 30, .sinks = 2},
        ExactChoice{.recall = 0.4, .window = 1}, ExactChoice{.verticals = 9, .slashes = 2, .sinks = 4},
        ExactChoice{.recall = 0.5, .dense_below = 134}, ExactChoice{.recall = 1}}) {
    std::vector<std::string> masks;
    if (number % 2 == 1) masks = {documents, "documents:0,70,71,300"};
    expect_as_in_double_precision(problem, choice, number++ % 3 == 0, masks);
  }
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
    const std::int64_t from = std::max(first, begin);
    std::vector<double> sum(static_cast<std::size_t>(problem.shape.head_dim));
    for (std::int64_t k = from; k < first + count; ++k)
      for (std::size_t c = 0; c < sum.size(); ++c)
        sum[c] += key(k)[c] / static_cast<double>(first + count - from);
    return sum;
  }
};

/// The `count` best of items first … behind − 1 by their scores, of equal ones the first.
std::vector<std::int64_t> best_of(std::int64_t first, const std::vector<double>& scores, std::int64_t count) {
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), first);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return scores[a - first] > scores[b - first]; });
  order.resize(static_cast<std::size_t>(std::min(count, std::ssize(order))));
  return order;
}

/// Blocks of `of.head`'s query, by MoBA.
std::vector<std::int64_t> blocks_of_moba(const ExactRows& of, std::int64_t block, std::int64_t top,
                                         std::int64_t q) {
  const std::int64_t first = of.begin / block, own = q / block;
  std::vector<double> scores;
  for (std::int64_t b = first; b < own; ++b) scores.push_back(of.product(q, of.mean(b * block, block)));
  std::vector<std::int64_t> blocks = best_of(first, scores, top - 1);
  blocks.push_back(own);
  return blocks;
}

struct InfLlm {
  std::int64_t block, top, sinks, window, stride;

  /// Blocks of the query of a kv head, by InfLLM-V2.
  std::vector<std::int64_t> blocks(ExactRows of, std::int64_t kv_head, std::int64_t q) const {
    const std::int64_t group = of.problem.shape.heads / of.problem.shape.kv_heads, own = q / block,
                       first = of.begin / block, first_key = of.begin / stride,
                       keys = (q + 1) / stride - 1;  // those that end by the query
    std::vector<double> sums(static_cast<std::size_t>(std::max<std::int64_t>(keys - first_key, 0)));
    for (of.head = kv_head * group; of.head < (kv_head + 1) * group; ++of.head) {
      std::vector<double> p;
      for (std::int64_t key = first_key; key < keys; ++key)
        p.push_back(std::exp(0.5 * of.problem.scale *
                             (of.product(q, of.mean(key * stride, stride)) +
                              of.product(q, of.mean((key + 1) * stride, stride)))));
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

/// Blocks that a block row of the document of its first token has, by XAttention.
std::vector<std::int64_t> blocks_of_row(const ExactRows& of, std::int64_t block, std::int64_t stride,
                                        double threshold, std::int64_t row) {
  const std::int64_t first = of.begin / block;
  std::vector<double> masses(static_cast<std::size_t>(row - first + 1));  // by distance
  for (std::int64_t t = row * block / stride; t < (row + 1) * block / stride && t * stride < of.end; ++t) {
    std::vector<double> weights;
    for (std::int64_t c = of.begin / stride; c <= t; ++c) {
      double score = 0;
      std::int64_t pairs = 0;
      for (std::int64_t o = 0; o < stride; ++o) {
        const std::int64_t q = t * stride + o, k = c * stride + stride - 1 - o;
        if (k > q || k < of.begin || q >= of.end) continue;
        score += of.product(q, k);
        ++pairs;
      }
      const auto parts = static_cast<double>(c < t ? stride : pairs);
      weights.push_back(parts > 0 ? std::exp(of.problem.scale * score / parts) : 0);
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t i = 0; i < weights.size() && sum > 0; ++i)
      masses[row - (of.begin / stride + static_cast<std::int64_t>(i)) * stride / block] += weights[i] / sum;
  }
  const double all = std::accumulate(masses.begin(), masses.end(), 0.0);
  std::vector<std::int64_t> blocks{row};
  double held = masses[0];
  for (const std::int64_t distance :
       best_of(1, std::vector<double>(masses.begin() + 1, masses.end()), std::ssize(masses) - 1)) {
    if (held >= threshold * all) break;
    held += masses[distance];
    blocks.push_back(row - distance);
  }
  return blocks;
}

/// Whether the queries of a selection have exactly the blocks blocks_of(rows of the document, list, query)
/// gives, of `block` tokens.
template <class BlocksOf>
void expect_blocks(const AttentionProblem& problem, const std::string& options, std::int64_t block,
                   const BlocksOf& blocks_of) {
  const HostSelection selection =
      selected(problem, {.options = options, .topology = Topology::uniform(2, 2)});
  const auto starts = problem.mask.document_starts();
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
  EXPECT_EQ(different, 0) << options << ": of " << all;
}

TEST(PackedDocuments, HaveTheBlocksOfDoublePrecision) {
  const auto problem = AttentionProblem::random(of_documents, documents, DType::f32, 1.5);
  for (const std::int64_t block : {64, 128})
    expect_blocks(problem, fmt::format("moba:block={},top=2", block), block,
                  [&](const ExactRows& rows, std::int64_t, std::int64_t q) {
                    return blocks_of_moba(rows, block, 2, q);
                  });
  for (const InfLlm& of : {InfLlm{64, 1, 3, 40, 8}, InfLlm{64, 2, 0, 1, 16}})
    expect_blocks(problem,
                  fmt::format("infllm-v2:block={},top={},sinks={},window={},stride={}", of.block, of.top,
                              of.sinks, of.window, of.stride),
                  of.block, [&](const ExactRows& rows, std::int64_t kv_head, std::int64_t q) {
                    return of.blocks(rows, kv_head, q);
                  });
  for (const auto& [block, stride, threshold] :
       {std::tuple<std::int64_t, std::int64_t, double>{64, 16, 0.6}, {128, 8, 0.7}, {64, 1, 0.5}})
    expect_blocks(problem,
                  fmt::format("xattention:block={},stride={},threshold={}", block, stride, threshold), block,
                  [&](const ExactRows& rows, std::int64_t, std::int64_t q) {
                    const std::int64_t row = q / block;
                    // Others than the document of the row's first token have the block on the diagonal alone.
                    if (rows.begin > row * block) return std::vector<std::int64_t>{row};
                    return blocks_of_row(rows, block, stride, threshold, row);
                  });
}

// Where a document's blocks are the same, nothing of its selection says what stands beside it.
TEST(PackedDocuments, AreSelectedForAsAloneWhereTheyBeginWithABlock) {
  constexpr std::int64_t begin = 128, tokens = 300;
  const AttentionShape of_all{
      .tokens = begin + tokens, .head_dim = 16, .batch = 1, .heads = 2, .kv_heads = 1};
  const auto all = AttentionProblem::random(of_all, "documents:0,128", DType::f32, 2.0);
  AttentionShape of_one = of_all;
  of_one.tokens = tokens;
  auto one = AttentionProblem::random(of_one, "causal", DType::f32, 2.0);
  for (auto [from, to] : {std::pair{&all.q, &one.q}, {&all.k, &one.k}})
    for (std::int64_t head = 0; head < (to == &one.q ? 2 : 1); ++head)
      for (std::int64_t row = 0; row < tokens; ++row)
        std::copy_n(from->row(0, head, begin + row), 16, to->row(0, head, row));
  for (const char* options : {"vertical-slash:recall=0.6,window=50,sinks=2,select=heads",
                              "xattention:block=64,stride=16,threshold=0.5", "moba:block=64,top=2",
                              "infllm-v2:block=64,top=1,sinks=1,window=70,stride=8"}) {
    const HostSelection packed = selected(all, {.options = options}),
                        alone = selected(one, {.options = options});
    std::int64_t different = 0, left_out = 0;
    for (std::int64_t list = 0; list < alone.lists; ++list)
      for (std::int64_t q = 0; q < tokens; ++q)
        for (std::int64_t k = 0; k <= q; ++k) {
          different += packed.allows(list, begin + q, begin + k) != alone.allows(list, q, k) ? 1 : 0;
          left_out += alone.allows(list, q, k) ? 0 : 1;
        }
    EXPECT_EQ(different, 0) << options;
    EXPECT_GT(left_out, 0) << options;
  }
}

TEST(PackedDocuments, AreComputedExactlyUnderEverySchedule) {
  const auto problem =
      AttentionProblem::random({.tokens = 261, .head_dim = 16, .batch = 1, .heads = 8, .kv_heads = 4},
                               "documents:0,20,70,102,240", DType::f32, 1.5);
  const char* const layouts[] = {"block-striped:64", "zigzag", "striped", "contiguous"};
  const char* const patterns[] = {"vertical-slash:verticals=11,slashes=1",
                                  "xattention:block=128,stride=16,threshold=0.5", "moba:block=64,top=1",
                                  "infllm-v2:block=64,top=1,sinks=3,window=20,stride=8"};
  int number = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::string& schedule : schedules_on(ranks)) {
      const Topology topology = balanced(ranks, ranks == 4 ? 2 : 1);
      SparseRun run{.options = patterns[number / 4 % std::size(patterns)],
                    .topology = topology,
                    .layout = Layout::parse(layouts[number++ % 4]),
                    .schedule = schedule};
      plan::Problem of{.topology = topology,
                       .layout = run.layout,
                       .mask = problem.mask,
                       .heads = 8,
                       .kv_heads = 4,
                       .head_dim = 16};
      if (documented_refusal(schedule, of)) run.layout = of.layout = Layout::parse("contiguous");
      if (documented_refusal(schedule, of)) continue;
      expect_exact<float>(problem, run,
                          fmt::format("{} ranks, {}, {}", ranks, schedule, run.layout.to_string()));
    }
  }
}

TEST(PackedDocuments, OfEachSequenceAreItsOwn) {
  const auto problem = AttentionProblem::random(
      {.tokens = 400, .head_dim = 24, .batch = 3, .heads = 4, .kv_heads = 2}, "causal", DType::f32, 1.5);
  for (const char* options :
       {"vertical-slash:recall=0.5,window=30,sinks=1",
        "vertical-slash:verticals=8,slashes=1,select=heads,dense-below=100",
        "xattention:block=64,stride=8,threshold=0.5", "moba:block=64,top=2,dense-below=60",
        "infllm-v2:block=64,top=1,sinks=1,window=30,stride=16"})
    for (const auto& [ranks, kernel] :
         {std::pair{1, attention::Kernel::automatic}, {3, attention::Kernel::portable}})
      expect_exact<float>(problem,
                          {.options = options,
                           .topology = Topology::uniform(ranks, ranks),
                           .layout = Layout::parse(ranks == 1 ? "contiguous" : "zigzag"),
                           .kernel = kernel,
                           .masks = {"documents:0,99,250", "documents:0,1,2,3,270,399", "causal"}},
                          options);
}

TEST(PackedDocuments, ShorterThanTheThresholdAreDense) {
  const auto problem = AttentionProblem::random(of_documents, documents, DType::f32, 1.5);
  for (const char* options :
       {"vertical-slash:verticals=0,slashes=1,dense-below=135",
        "xattention:block=64,stride=16,threshold=0.01,dense-below=135", "moba:block=64,top=1,dense-below=135",
        "infllm-v2:block=64,top=0,sinks=0,window=1,dense-below=135"}) {
    const HostSelection selection = selected(problem, {.options = options});
    std::int64_t of_short = 0, of_long = 0;  // pairs that are left out of documents 65 … 198 and 323 … 554
    for (std::int64_t q = 65; q < 199; ++q)
      for (std::int64_t k = 65; k <= q; ++k) of_short += selection.allows(0, q, k) ? 0 : 1;
    for (std::int64_t q = 323; q < 555; ++q)
      for (std::int64_t k = 323; k <= q; ++k) of_long += selection.allows(0, q, k) ? 0 : 1;
    EXPECT_EQ(of_short, 0) << options;
    EXPECT_GT(of_long, 0) << options;
  }
}

TEST(PackedDocuments, AreAThousandInOneSequence) {
  std::vector<std::int64_t> starts;
  for (std::int64_t start = 0; std::ssize(starts) < 1000; start += 1 + std::ssize(starts) % 7)
    starts.push_back(start);
  const AttentionShape of{
      .tokens = starts.back() + 300, .head_dim = 16, .batch = 1, .heads = 2, .kv_heads = 1};
  const auto problem =
      AttentionProblem::random(of, fmt::format("documents:{}", fmt::join(starts, ",")), DType::f32, 1.5);
  for (const char* options : {"vertical-slash:recall=0.5", "xattention:block=64,stride=16,threshold=0.5",
                              "moba:block=64,top=2", "infllm-v2:block=64,top=1,sinks=0,window=1"})
    expect_exact<float>(problem,
                        {.options = options,
                         .topology = Topology::uniform(2, 2),
                         .layout = Layout::parse("block-striped:64")},
                        options);
}

}  // namespace
}  // namespace annulus::test
