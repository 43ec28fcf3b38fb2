// The blocks that InfLLM-V2 selects, beside double precision that is fed the same products.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/sparsity/patterns/table.hpp"
#include "attention/sparsity/query_blocks/query_blocks.hpp"
#include "attention/sparsity/sparse_case.hpp"

namespace annulus::test {
namespace {

/// Products of all queries with halves of compressed keys, (heads, tokens, halves), as the pattern has them.
template <class T>
std::vector<float> products_of(const AttentionProblem& problem, std::int64_t stride) {
  const auto& shape = problem.shape;
  const PositionMap rows = Layout().shard(shape.tokens, 1, 0);
  std::vector<float> found;
  comm::run_loopback(Topology::uniform(1, 1), [&](comm::Communicator& communicator) {
    const TestExec exec;
    const auto q = rows_on<T>(exec, problem.q, rows), k = rows_on<T>(exec, problem.k, rows);
    const auto halves =
        sparsity::pooled_keys<TestExec, T>(exec, communicator, k.memory(), rows, shape.tokens, stride);
    using Tiles = sparsity::RowTiles<TestExec>;
    const std::int64_t heads = std::int64_t{shape.batch} * shape.heads,
                       columns = ceil_divide(shape.tokens, stride);
    const auto memory = Tiles::memory(exec, "annulus::test::products", heads, shape.tokens, columns);
    const Tiles products{*memory, heads, shape.tokens, columns};
    sparsity::pooled_products<TestExec, T>(exec, q.memory(), rows, *halves, stride, 0, products);
    exec.fence("annulus::test: products are there");
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), products.values);
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t row = 0; row < shape.tokens; ++row)
        for (std::int64_t column = 0; column < columns; ++column)
          found.push_back(host(products.index(head, row, column)));
  });
  return found;
}

/// The blocks of a query by the text of the paper; `list` counts kv heads over the batch.
template <class T>
class Literal {
 public:
  Literal(const AttentionProblem& problem, const sparsity::InfLlmV2& options)
      : shape_(problem.shape),
        options_(options),
        scale_(static_cast<float>(problem.scale)),
        halves_(ceil_divide(problem.shape.tokens, options.stride)),
        products_(products_of<T>(problem, options.stride)) {}

  std::vector<std::int64_t> blocks(std::int64_t list, std::int64_t query) const {
    const std::int64_t own = query / options_.block;
    std::vector<std::int64_t> found, others;
    for (std::int64_t b = 0; b <= own; ++b) {
      const bool sink =
          b * options_.block<options_.sinks, near = (b + 1) * options_.block> query - options_.window + 1;
      (sink || near ? found : others).push_back(b);
    }
    const std::vector<double> scores = block_scores(list, query);
    std::ranges::stable_sort(others, [&](std::int64_t a, std::int64_t b) { return scores[a] > scores[b]; });
    others.resize(std::min<std::size_t>(others.size(), options_.top));
    found.insert(found.end(), others.begin(), others.end());
    std::ranges::sort(found);
    return found;
  }

 private:
  /// Probabilities of the compressed keys that the query sees whole, summed over the heads of the kv head.
  std::vector<double> key_probabilities(std::int64_t list, std::int64_t query) const {
    const std::int64_t group = shape_.heads / shape_.kv_heads;
    std::vector<double> sums;
    for (std::int64_t head = list * group; head < (list + 1) * group; ++head) {
      std::vector<double> powers;
      for (std::int64_t key = 0; (key + 2) * options_.stride <= query + 1; ++key) {
        const float* const of =
            &products_[static_cast<std::size_t>((head * shape_.tokens + query) * halves_ + key)];
        powers.push_back(std::exp(0.5 * scale_ * (double(of[0]) + double(of[1]))));
      }
      const double sum = std::accumulate(powers.begin(), powers.end(), 0.0);
      sums.resize(powers.size());
      for (std::size_t key = 0; key < powers.size(); ++key) sums[key] += powers[key] / sum;
    }
    return sums;
  }
  std::vector<double> block_scores(std::int64_t list, std::int64_t query) const {
    const std::vector<double> keys = key_probabilities(list, query);
    std::vector<double> scores;
    for (std::int64_t b = 0; b <= query / options_.block; ++b) {
      double largest = -infinity;
      for (std::int64_t key = 0; key < std::ssize(keys); ++key) {
        const std::int64_t first = key * options_.stride, end = first + 2 * options_.stride;
        if (first < (b + 1) * options_.block && end > b * options_.block)
          largest = std::max(largest, keys[static_cast<std::size_t>(key)]);
      }
      scores.push_back(largest);
    }
    return scores;
  }

  AttentionShape shape_;
  sparsity::InfLlmV2 options_;
  float scale_;
  std::int64_t halves_;
  std::vector<float> products_;
};

template <class T>
void expect_literal(const AttentionProblem& problem, const std::string& text) {
  const auto options = std::get<sparsity::InfLlmV2>(sparsity::PatternOptions::parse(text).pattern().of);
  const Literal<T> literal(problem, options);
  const auto select = [&](int ranks, const char* layout) {
    return run_sparse<T>(problem, {.options = text,
                                   .topology = Topology::uniform(ranks, ranks),
                                   .layout = Layout::parse(layout),
                                   .selects_alone = true})
        .selection;
  };
  const HostSelection one = select(1, "contiguous");
  const auto& shape = problem.shape;
  std::int64_t different = 0;
  for (std::int64_t list = 0; list < shape.batch * shape.kv_heads; ++list)
    for (std::int64_t query = 0; query < shape.tokens; ++query) {
      std::vector<std::int64_t> found;
      for (std::int64_t b = 0; b < ceil_divide(shape.tokens, options.block); ++b)
        if (one.holds(list, query, b)) found.push_back(b);
      different += found == literal.blocks(list, query) ? 0 : 1;
    }
  // Probabilities are rounded to fp32: scores that are alike to 10⁻⁶ may be ordered otherwise, one query of a
  // thousand.
  EXPECT_LE(different, shape.batch * shape.kv_heads * shape.tokens / 1000) << text;
  for (const auto& [ranks, layout] : {std::pair{2, "zigzag"}, {3, "striped"}, {4, "block-striped:64"}})
    EXPECT_EQ(select(ranks, layout), one) << ranks << " ranks, " << layout << ", " << text;
}

TEST(InfLlmV2, SelectsWhatDoublePrecisionSelectsFromTheSameProducts) {
  const auto f32 = AttentionProblem::random(
      {.tokens = 777, .head_dim = 24, .batch = 2, .heads = 4, .kv_heads = 2}, "causal", DType::f32, 1.5);
  expect_literal<float>(f32, "infllm-v2:block=64,top=2,sinks=1,window=70,stride=16");
  expect_literal<float>(f32, "infllm-v2:block=64,top=3,sinks=0,window=1,stride=64");
  const auto bf16 = AttentionProblem::random({.tokens = 1000, .head_dim = 16, .heads = 6, .kv_heads = 1},
                                             "causal", DType::bf16, 1.5);
  expect_literal<bfloat16>(bf16, "infllm-v2:block=128,top=1,sinks=130,window=64,stride=8");
}

TEST(InfLlmV2, TakesLowerPositionsOfEqualScores) {
  auto problem = AttentionProblem::random({.tokens = 640, .head_dim = 16}, "causal");
  std::ranges::fill(problem.q.values, 0.0);
  const SparseResult sparse =
      run_sparse<float>(problem, {.options = "infllm-v2:block=64,top=2,sinks=0,window=64,stride=16",
                                  .topology = Topology::uniform(2, 2),
                                  .layout = Layout::parse("zigzag"),
                                  .selects_alone = true});
  for (std::int64_t b = 0; b < 10; ++b)
    EXPECT_EQ(sparse.selection.holds(0, 600, b), b < 2 || b == 8 || b == 9) << b;
}

}  // namespace
}  // namespace annulus::test
