// XAttention: scores of tiles, and the selection, beside double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/sparsity/patterns/table.hpp"
#include "attention/sparsity/patterns/tile_scores.hpp"
#include "attention/sparsity/sparse_case.hpp"
#include "attention/sparsity/take_rows.hpp"

namespace annulus::test {
namespace {

using sparsity::XAttention;

XAttention xattention(const std::string& options) {
  return std::get<XAttention>(sparsity::PatternOptions::parse(options).pattern().of);
}

/// Scores of all tiles of one query head, and the sums of the terms' sizes: (query tiles, key tiles).
struct TileTable {
  std::int64_t tiles;
  std::vector<double> scores, sizes;

  explicit TileTable(std::int64_t all)
      : tiles(all),
        scores(static_cast<std::size_t>(all * all), -infinity),
        sizes(static_cast<std::size_t>(all * all), 0) {}
  std::size_t at(std::int64_t query, std::int64_t key) const {
    return static_cast<std::size_t>(query * tiles + key);
  }
};

/// As their definition has them, in double precision.
TileTable exact_scores(const AttentionProblem& problem, std::int64_t b, std::int64_t head,
                       const XAttention& options) {
  const std::int64_t stride = options.stride, tokens = problem.shape.tokens;
  const std::int64_t kv_head = head / (problem.shape.heads / problem.shape.kv_heads);
  TileTable table(ceil_divide(tokens, stride));
  for (std::int64_t t = 0; t < table.tiles; ++t) {
    for (std::int64_t c = 0; c <= t; ++c) {
      double sum = 0, size = 0;
      int pairs = 0;
      for (std::int64_t o = 0; o < stride; ++o) {
        const std::int64_t q = t * stride + o, k = c * stride + stride - 1 - o;
        if (q >= tokens || k > q) continue;
        ++pairs;
        const double* const of_q = problem.q.row(b, head, q);
        const double* const of_k = problem.k.row(b, kv_head, k);
        for (int i = 0; i < problem.shape.head_dim; ++i) {
          const double term = of_q[i] * of_k[i];
          sum += term;
          size += std::abs(term);
        }
      }
      const double scale = problem.scale / static_cast<double>(c == t ? pairs : stride);
      if (pairs == 0) continue;
      table.scores[table.at(t, c)] = scale * sum;
      table.sizes[table.at(t, c)] = scale * size;
    }
  }
  return table;
}

/// As the library rounds them, of the query heads of a kv head.
template <class T>
std::vector<TileTable> rounded_scores(const AttentionProblem& problem, std::int64_t b, std::int64_t kv_head,
                                      const XAttention& options) {
  const TestExec exec;
  const std::int64_t tokens = problem.shape.tokens, group = problem.shape.heads / problem.shape.kv_heads,
                     block_rows = ceil_divide(tokens, options.block),
                     tiles = ceil_divide(tokens, options.stride);
  const int width = problem.shape.head_dim;
  const PositionMap all = Layout().shard(tokens, 1, 0);
  const auto q = rows_on<T>(exec, problem.q, all), k = rows_on<T>(exec, problem.k, all);
  const auto heads_of = [&](const Array4<T, TestExec>& of, std::int64_t first, std::int64_t count) {
    return Array4<const T, TestExec>(of.data() + first * tokens * width, 1, count, tokens, width);
  };
  const Array1<std::int64_t, TestExec> listed("rows", block_rows);
  const auto on_host = Kokkos::create_mirror_view(listed);
  for (std::int64_t i = 0; i < block_rows; ++i) on_host(i) = i;
  Kokkos::deep_copy(listed, on_host);
  const Array4<T, TestExec> queries("queries", 1, group, block_rows * options.block, width),
      keys("keys", 1, 1, tiles * options.stride, width);
  const std::int64_t kv_heads = problem.shape.kv_heads;
  sparsity::take_rows<TestExec, T>(
      exec, heads_of(q.memory(), (b * kv_heads + kv_head) * group, group), all,
      sparsity::RowsOfBlocks{listed.data(), options.block, block_rows * options.block, {.tokens = tokens}, 0},
      queries);
  sparsity::take_rows<TestExec, T>(exec, heads_of(k.memory(), b * kv_heads + kv_head, 1), all,
                                   sparsity::ReversedTiles{options.stride, tiles * options.stride}, keys);
  const auto made =
      sparsity::tile_scores<TestExec, T>(exec, {.q = queries,
                                                .k = keys,
                                                .block_rows = listed,
                                                .stride = options.stride,
                                                .tiles_of_block = options.block / options.stride,
                                                .tokens = tokens,
                                                .scale = static_cast<float>(problem.scale),
                                                .spans = {.tokens = tokens}});
  exec.fence("annulus::test: scores are there");
  const auto scores = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), made.scores.view());
  std::vector<TileTable> tables;
  for (std::int64_t head = 0; head < group; ++head) {
    TileTable& table = tables.emplace_back(tiles);
    for (std::int64_t t = 0; t < tiles; ++t)
      for (std::int64_t c = 0; c <= t; ++c) table.scores[table.at(t, c)] = scores(head, c, t);
  }
  return tables;
}

/// Masses of the blocks of a block row, by block distance.
std::vector<double> masses_of_row(const std::vector<TileTable>& heads, std::int64_t row,
                                  const XAttention& options) {
  const std::int64_t per = options.block / options.stride;
  std::vector<double> masses(static_cast<std::size_t>(row + 1));
  for (const TileTable& table : heads) {
    for (std::int64_t t = row * per; t < std::min((row + 1) * per, table.tiles); ++t) {
      const double* const scores = &table.scores[table.at(t, 0)];
      const double highest = *std::max_element(scores, scores + t + 1);
      if (highest == -infinity) continue;
      double sum = 0;
      for (std::int64_t c = 0; c <= t; ++c) sum += std::exp(scores[c] - highest);
      for (std::int64_t c = 0; c <= t; ++c)
        masses[static_cast<std::size_t>(row - c / per)] += std::exp(scores[c] - highest) / sum;
    }
  }
  return masses;
}

/// The block distances that hold the threshold, the own block first: which are taken, by sorting.
std::vector<bool> literally_selected(const std::vector<double>& masses, double threshold) {
  std::vector<std::size_t> order(masses.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin() + 1, order.end(), [&](auto a, auto b) { return masses[a] > masses[b]; });
  const double wanted = threshold * std::accumulate(masses.begin(), masses.end(), 0.0);
  std::vector<bool> selected(masses.size());
  double held = 0;
  for (const std::size_t distance : order) {
    if (distance != order.front() && held >= wanted) break;
    selected[distance] = true;
    held += masses[distance];
  }
  return selected;
}

/// Compares a selection with that of the rounded scores. Gives the number of its blocks.
template <class T>
std::int64_t compare(const AttentionProblem& problem, const std::string& text) {
  const XAttention options = xattention(text);
  const HostSelection selection = run_sparse<T>(problem, {.options = text, .selects_alone = true}).selection;
  const auto& shape = problem.shape;
  const std::int64_t group = shape.heads / shape.kv_heads, heads_of_list = shape.heads / selection.lists;
  EXPECT_EQ(selection.lists, options.of_query_heads ? shape.heads : shape.kv_heads);
  std::int64_t blocks = 0;
  for (std::int64_t list = 0; list < selection.batch * selection.lists; ++list) {
    const std::int64_t b = list / selection.lists, first = list % selection.lists * heads_of_list;
    std::vector<TileTable> rounded = rounded_scores<T>(problem, b, first / group, options);
    rounded = {rounded.begin() + first % group, rounded.begin() + first % group + heads_of_list};
    for (std::int64_t row = 0; row < selection.pattern_rows; ++row) {
      std::vector<bool> found;
      for (std::int64_t d = 0; d <= row; ++d) found.push_back(selection.holds(list, row, d));
      EXPECT_EQ(found, literally_selected(masses_of_row(rounded, row, options), options.threshold))
          << text << ", list " << list << ", block row " << row;
      blocks += row + 1;
    }
  }
  return blocks;
}

template <class T>
class XAttentionScores : public testing::Test {};
using TileTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(XAttentionScores, TileTypes);

TYPED_TEST(XAttentionScores, AreThoseOfTheirDefinition) {
  for (const auto& [tokens, width, options] : {std::tuple{333, 16, "xattention:block=64,stride=16"},
                                               {200, 24, "xattention:block=64,stride=1"},
                                               {517, 64, "xattention"},
                                               {130, 8, "xattention:block=192,stride=3"},
                                               {7, 16, "xattention:stride=16"}}) {
    const auto problem =
        AttentionProblem::random({.tokens = tokens, .head_dim = width, .batch = 2, .heads = 4, .kv_heads = 2},
                                 "causal", dtype_of<TypeParam>, 1.5);
    const XAttention of = xattention(options);
    const std::vector<TileTable> rounded = rounded_scores<TypeParam>(problem, 1, 1, of);
    double worst = 0;
    for (std::int64_t head = 0; head < 2; ++head) {
      const TileTable exact = exact_scores(problem, 1, 2 + head, of);
      for (std::size_t i = 0; i < exact.scores.size(); ++i) {
        if (exact.scores[i] == -infinity) {
          EXPECT_EQ(rounded[head].scores[i], -infinity) << options << ", tile " << i;
        } else {
          worst = std::max(worst, std::abs(rounded[head].scores[i] - exact.scores[i]) / exact.sizes[i]);
        }
      }
    }
    EXPECT_LT(worst, on_host ? 1e-6 : 2e-6) << options;  // tensor cores cut off bits where others round
  }
}

TEST(XAttention, SelectsWhatDoublePrecisionSelectsFromTheSameScores) {
  std::int64_t blocks = 0;
  for (const auto& [tokens, width, heads, kv_heads, batch, amplitude, options] :
       {std::tuple{1, 16, 2, 1, 1, 1.0, "xattention"},
        {63, 16, 2, 2, 2, 2.0, "xattention:block=64,stride=8,threshold=0.5"},
        {333, 16, 4, 2, 2, 2.0, "xattention:block=64,stride=4,threshold=0.7"},
        {650, 24, 4, 1, 1, 1.5, "xattention:block=128,stride=16,threshold=0.6,select=kv-heads"},
        {1025, 64, 2, 1, 1, 3.0, "xattention:block=64,stride=16,threshold=0.9"},
        {700, 16, 2, 2, 1, 2.0, "xattention:block=192,stride=3,threshold=0.8"},
        {1500, 16, 4, 2, 1, 2.5, "xattention:block=64,stride=2,threshold=0.95,select=kv-heads"},
        {400, 16, 2, 1, 1, 1.0, "xattention:block=64,stride=64,threshold=0.3"}}) {
    const AttentionShape shape{
        .tokens = tokens, .head_dim = width, .batch = batch, .heads = heads, .kv_heads = kv_heads};
    blocks += compare<float>(AttentionProblem::random(shape, "causal", DType::f32, amplitude), options);
    blocks +=
        compare<bfloat16>(AttentionProblem::random(shape, "causal", DType::bf16, amplitude, 3), options);
    blocks += compare<float16>(AttentionProblem::random(shape, "causal", DType::f16, amplitude, 5), options);
  }
  EXPECT_GT(blocks, 3000);
}

TEST(XAttention, TakesTheNearerOneOfBlocksOfEqualMass) {
  auto problem = AttentionProblem::random({.tokens = 640, .head_dim = 16}, "causal");
  std::ranges::fill(problem.q.values, 0.0);
  const HostSelection selection =
      run_sparse<float>(problem, {.options = "xattention:block=64,stride=16,threshold=0.5",
                                  .topology = Topology::uniform(2, 2),
                                  .layout = Layout::parse("zigzag"),
                                  .selects_alone = true})
          .selection;
  // Of all tiles alike: block row r has 4 rows of 4 r tiles before the diagonal, and 10 in the own block.
  for (std::int64_t row = 0; row < 10; ++row) {
    std::int64_t taken = 0;
    while (taken <= row && selection.holds(0, row, taken)) ++taken;
    for (std::int64_t d = taken; d <= row; ++d)
      EXPECT_FALSE(selection.holds(0, row, d)) << "block row " << row << ": there is a nearer one";
    EXPECT_NEAR(static_cast<double>(taken), 0.5 * static_cast<double>(row + 1), 1) << "block row " << row;
  }
}

}  // namespace
}  // namespace annulus::test
