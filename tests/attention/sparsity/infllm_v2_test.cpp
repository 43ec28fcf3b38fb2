// The scores and the blocks of InfLLM-V2, beside double precision.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/attention/comm/loopback.hpp>

#include "attention/sparsity/double_precision.hpp"
#include "attention/sparsity/patterns/compressed_scores.hpp"
#include "attention/sparsity/patterns/table.hpp"

namespace annulus::test {
namespace {

/// Scores of blocks as the library rounds them, of all queries, `part` at a time.
class RoundedScores {
 public:
  template <class T>
  static RoundedScores of(const AttentionProblem& problem, const std::string& text, std::int64_t part) {
    const auto options = std::get<sparsity::InfLlmV2>(sparsity::PatternOptions::parse(text).pattern().of);
    RoundedScores made;
    comm::run_loopback(Topology::uniform(1, 1), [&](comm::Communicator& communicator) {
      const TestExec exec;
      const std::int64_t tokens = problem.shape.tokens, lists = problem.shape.batch * problem.shape.kv_heads,
                         blocks = options.blocks_of(tokens).blocks();
      const PositionMap all = Layout().shard(tokens, 1, 0);
      const auto q = rows_on<T>(exec, problem.q, all), k = rows_on<T>(exec, problem.k, all);
      const sparsity::PatternInputs<TestExec, T> in{.q = q.memory(),
                                                    .k = k.memory(),
                                                    .positions = all,
                                                    .tokens = tokens,
                                                    .scale = static_cast<float>(problem.scale)};
      const auto keys = sparsity::compressed_keys<TestExec, T>(exec, communicator, in, options);
      const Array3<float, TestExec> scores("scores", lists, blocks, tokens);
      sparsity::compressed_scores<TestExec, T>(exec, in, options, *keys, 0, part, scores);
      exec.fence("annulus::test: scores are there");
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), scores);
      for (std::int64_t list = 0; list < lists; ++list)
        for (std::int64_t row = 0; row < tokens; ++row)
          for (std::int64_t b = 0; b < blocks; ++b) made.scores_.push_back(host(list, b, row));
      made.tokens_ = tokens;
      made.blocks_ = blocks;
    });
    return made;
  }

  float at(std::int64_t list, std::int64_t query, std::int64_t block) const {
    return scores_[static_cast<std::size_t>((list * tokens_ + query) * blocks_ + block)];
  }

 private:
  std::int64_t tokens_ = 0, blocks_ = 0;
  std::vector<float> scores_;
};

template <class T>
class InfLlmV2 : public testing::Test {};
using InfLlmTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(InfLlmV2, InfLlmTypes);

// Scores are within rounding of their definition, with the same bits however many rows there are at once, and
// the blocks are the best ones by the rounded scores.
TYPED_TEST(InfLlmV2, SelectsWhatDoublePrecisionSelectsFromTheSameScores) {
  const struct {
    AttentionShape shape;
    ExactInfLlm by;
  } cases[] = {{{.tokens = 333, .head_dim = 24, .batch = 2, .heads = 4, .kv_heads = 2}, {64, 1, 1, 70, 16}},
               {{.tokens = 500, .head_dim = 64, .heads = 3, .kv_heads = 1}, {64, 1, 70, 64, 2}},
               {{.tokens = 300, .head_dim = 64, .heads = 2, .kv_heads = 2}, {64, 1, 0, 1, 64}}};
  double worst = 0;
  for (auto [shape, by] : cases) {
    by.type = dtype_of<TypeParam>;
    const auto problem = AttentionProblem::random(shape, "causal", dtype_of<TypeParam>, 1.5);
    const RoundedScores rounded = RoundedScores::of<TypeParam>(problem, by.text(), 150),
                        at_once = RoundedScores::of<TypeParam>(problem, by.text(), shape.tokens);
    const HostSelection selection =
        run_sparse<TypeParam>(problem, {.options = by.text(), .selects_alone = true}).selection;
    std::int64_t different = 0, choices = 0, of_rows = 0;
    for_each_query(
        problem, selection, by,
        [&](std::int64_t list, std::int64_t q, ScoredBlocks blocks, const std::vector<bool>& found) {
          for (std::size_t b = 0; b < blocks.scores.size(); ++b) {
            if (blocks.always[b]) continue;
            const double exact = blocks.scores[b];
            const auto block = static_cast<std::int64_t>(b);
            blocks.scores[b] = rounded.at(list, q, block);
            of_rows += blocks.scores[b] != at_once.at(list, q, block) ? 1 : 0;
            if (blocks.scores[b] != exact)
              worst = std::max(worst, std::abs(blocks.scores[b] - exact) / exact);
          }
          different += blocks.selected() != found ? 1 : 0;
          choices += std::ranges::count(found, false) > 0 ? 1 : 0;
        });
    EXPECT_EQ(different, 0) << by.text();
    EXPECT_EQ(of_rows, 0) << by.text() << ": bits depend on the rows at once";
    EXPECT_GT(choices, shape.tokens / 3) << by.text();
  }
  EXPECT_LT(worst, on_host ? 1e-5 : 1e-4);  // tensor cores cut off bits where others round
  this->RecordProperty("worst", fmt::format("{:.2g}", worst));
}

TEST(InfLlmV2Ties, AreTheLowerPositions) {
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
