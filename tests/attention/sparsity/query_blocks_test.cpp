// Blocks for each query: means of keys and the best blocks beside double precision, on any ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/attention/comm/loopback.hpp>
#include <bit>
#include <cmath>
#include <mutex>

#include "attention/sparsity/bits.hpp"
#include "attention/sparsity/double_precision.hpp"
#include "attention/sparsity/query_blocks/query_blocks.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

/// Blocks that all ranks chose, in the order of the sequence.
struct BestBlocks {
  std::vector<float> pooled;         // (batch, kv_heads, blocks, head_dim)
  std::vector<std::int32_t> chosen;  // (batch, heads, tokens, top), increasing, filled up with the blocks
};

template <class T>
BestBlocks select_blocks(const AttentionProblem& problem, std::int64_t block, std::int64_t top, int ranks,
                         const char* layout) {
  const auto& shape = problem.shape;
  BestBlocks found;
  found.chosen.assign(static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens * top), -1);
  std::mutex mutex;
  comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    const PositionMap rows = Layout::parse(layout).shard(shape.tokens, ranks, communicator.rank());
    const auto q = rows_on<T>(exec, problem.q, rows), k = rows_on<T>(exec, problem.k, rows);
    const auto pooled =
        sparsity::pooled_keys<TestExec, T>(exec, communicator, k.memory(), rows, shape.tokens, block);
    const sparsity::TopBlocks of{.tokens = shape.tokens, .block = block, .best = top - 1};
    const Array3<std::uint32_t, TestExec> words("words", shape.batch * shape.heads, shape.tokens, of.words());
    sparsity::choose_top_blocks<TestExec, T>(exec, q.memory(), rows, *pooled, of, words);
    exec.fence("annulus::test: blocks are chosen");
    const auto means = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), pooled.view());
    const auto chosen = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), words);
    const std::lock_guard lock(mutex);
    const std::vector<float> here(means.data(), means.data() + means.size());
    if (found.pooled.empty()) found.pooled = here;
    const auto bits = [](float a, float b) { return std::bit_cast<int>(a) == std::bit_cast<int>(b); };
    EXPECT_TRUE(std::ranges::equal(here, found.pooled, bits)) << "rank " << communicator.rank();
    for (std::int64_t head = 0; head < shape.batch * shape.heads; ++head)
      for (std::int64_t row = 0; row < rows.count; ++row) {
        auto to = found.chosen.begin() + (head * shape.tokens + rows(row)) * top;
        const auto end = to + top;
        sparsity::for_each_bit_below(&chosen(head, rows(row), 0), of.blocks(), [&](std::int64_t b) {
          ASSERT_LT(to, end) << "more blocks than " << top;
          *to++ = static_cast<std::int32_t>(b);
        });
        std::fill(to, end, static_cast<std::int32_t>(of.blocks()));
      }
  });
  return found;
}

constexpr AttentionShape of_queries{.tokens = 333, .head_dim = 24, .batch = 2, .heads = 4, .kv_heads = 2};

/// A head of all queries and keys.
ExactRows rows_of(const AttentionProblem& problem, std::int64_t head) {
  return {problem, head / problem.shape.heads, head % problem.shape.heads, 0, problem.shape.tokens};
}

template <class T>
class QueryBlocks : public testing::Test {};
using QueryTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(QueryBlocks, QueryTypes);

TYPED_TEST(QueryBlocks, AreTheBestByDoublePrecisionWithTheSameBitsOnAnyRanks) {
  const auto problem = AttentionProblem::random(of_queries, "causal", dtype_of<TypeParam>, 1.5);
  for (const auto& [block, top] : {std::pair{64, 3}, {32, 5}, {50, 2}, {16, 1}, {100, 9}}) {
    const BestBlocks one = select_blocks<TypeParam>(problem, block, top, 1, "contiguous");
    const std::int64_t blocks = ceil_divide(of_queries.tokens, std::int64_t{block});
    for (std::int64_t head = 0; head < of_queries.batch * of_queries.heads; ++head) {
      const ExactRows rows = rows_of(problem, head);
      const std::int64_t kv_head = head / (of_queries.heads / of_queries.kv_heads);
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::vector<double> mean = rows.mean(b * block, block);
        for (int c = 0; c < of_queries.head_dim; ++c)
          ASSERT_NEAR(one.pooled[static_cast<std::size_t>((kv_head * blocks + b) * of_queries.head_dim + c)],
                      mean[c], 1e-6)
              << "block " << b << " of " << block;
      }
      for (std::int64_t t = 0; t < of_queries.tokens; ++t) {
        const auto found = one.chosen.begin() + (head * of_queries.tokens + t) * top;
        const std::vector<bool> selected = ExactMoba{block, top}.blocks(rows, 0, t).selected();
        std::vector<std::int64_t> best;
        for (std::int64_t b = 0; b <= t / block; ++b)
          if (selected[b]) best.push_back(b);
        best.resize(static_cast<std::size_t>(top), blocks);
        ASSERT_TRUE(std::equal(best.begin(), best.end(), found))
            << "head " << head << ", query " << t << ", blocks of " << block;
      }
    }
    for (const auto& [ranks, layout] : {std::pair{2, "zigzag"}, {3, "striped"}, {4, "block-striped:64"}}) {
      const BestBlocks several = select_blocks<TypeParam>(problem, block, top, ranks, layout);
      EXPECT_EQ(several.pooled, one.pooled) << ranks << " ranks, " << layout;
      EXPECT_EQ(several.chosen, one.chosen) << ranks << " ranks, " << layout;
    }
  }
}

TEST(QueryBlocksOf, EqualProductsAreThoseOfLowerPositions) {
  auto problem = AttentionProblem::random({.tokens = 100, .head_dim = 16}, "causal");
  std::ranges::fill(problem.q.values, 0.0);
  const BestBlocks found = select_blocks<float>(problem, 10, 3, 2, "zigzag");
  const std::int32_t* const of_query = &found.chosen[3 * 57];
  EXPECT_EQ(std::vector<std::int32_t>(of_query, of_query + 3), (std::vector<std::int32_t>{0, 1, 5}));
}

TEST(QueryBlocksOf, KeysOfAnySizeHaveMeansAndThoseThatAreNotFiniteHaveNone) {
  auto problem = AttentionProblem::random({.tokens = 60, .head_dim = 16}, "causal");
  for (int c = 0; c < 16; ++c) {
    problem.k.row(0, 0, 5)[c] = 3e38;  // blocks of 20: large, tiny, and one with an infinity
    for (int t = 20; t < 40; ++t) problem.k.row(0, 0, t)[c] *= 1e-38;
  }
  problem.k.row(0, 0, 45)[3] = infinity;
  const BestBlocks found = select_blocks<float>(problem, 20, 2, 2, "striped");
  EXPECT_NEAR(found.pooled[0], 1.5e37, 1e31);
  EXPECT_NEAR(found.pooled[16], rows_of(problem, 0).mean(20, 20)[0], 1e-44);
  EXPECT_TRUE(std::isnan(found.pooled[32]));
}

TEST(QueryBlocksOf, ErrorsNameWhatDoesNotFit) {
  const TestExec exec;
  const Array4<float, TestExec> q("q", 1, 4, 8, 16);
  const Array3<std::uint32_t, TestExec> bits("bits", 4, 8, 1);
  const auto error = [&](std::int64_t kv_heads, std::int64_t tokens) {
    const Array4<float, TestExec> pooled("pooled", 1, kv_heads, 2, 16);
    return error_text([&] {
      sparsity::choose_top_blocks<TestExec, float>(exec, q, Layout().shard(8, 1, 0), pooled,
                                                   {.tokens = tokens, .block = 4, .best = 2}, bits);
    });
  };
  EXPECT_THAT(error(3, 8), mentions("3 kv heads for 4 heads", "8 tokens in blocks of 4"));
  EXPECT_THAT(error(2, 7), mentions("bits (4, 8, 1) for 4 heads of 7 tokens"));
}

}  // namespace
}  // namespace annulus::test
