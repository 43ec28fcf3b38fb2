// Blocks by scores from outside: the best ones by definition, on any ranks, in both passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/base/division.hpp>
#include <cmath>

#include "attention/sparsity/sparse_case.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

/// Few values, so that many are equal, with infinities and NaN among them.
float given_score(std::int64_t list, std::int64_t position, std::int64_t block) {
  auto drawn = static_cast<std::uint64_t>((list * 4096 + position) * 4096 + block) * 0x9e3779b97f4a7c15u;
  drawn = (drawn ^ drawn >> 29) * 0xbf58476d1ce4e5b9u >> 40;
  constexpr float values[] = {-INFINITY, -2, -1, 0, 0, 1, 2, NAN, INFINITY};
  return values[drawn % 9];
}

/// The numbers of a pattern, and the blocks that a query of the document from `begin` on has by them.
struct BestByScores {
  std::int64_t block, best, sinks, window;

  bool has(std::int64_t list, std::int64_t begin, std::int64_t query, std::int64_t b) const {
    const auto always = [&](std::int64_t of) {
      return (sinks > 0 && of * block < begin + sinks) || (of + 1) * block > query + 1 - window;
    };
    const std::int64_t first = begin / block;
    if (b < first || b > query / block) return false;
    if (always(b)) return true;
    std::vector<std::int64_t> others;
    for (std::int64_t of = first; of <= query / block; ++of)
      if (!always(of)) others.push_back(of);
    const auto value = [&](std::int64_t of) {
      const float given = given_score(list, query, of);
      return std::isnan(given) ? -INFINITY : given;
    };
    std::ranges::stable_sort(others, std::greater(), value);
    const auto count = std::min<std::ptrdiff_t>(best, std::ssize(others));
    return std::find(others.begin(), others.begin() + count, b) != others.begin() + count;
  }
};

constexpr AttentionShape given_shape{.tokens = 555, .head_dim = 16, .batch = 2, .heads = 4, .kv_heads = 2};
constexpr const char* given_documents = "documents:0,1,130,200,448";

TEST(GivenScores, TakeTheBestBlocksOnAnyRanks) {
  for (const auto& [options, of] :
       {std::pair{"moba:block=64,top=3", BestByScores{64, 2, 0, 1}},
        {"infllm-v2:block=64,top=2,sinks=3,window=70", BestByScores{64, 2, 3, 70}},
        {"infllm-v2:block=128,top=0,sinks=0,window=1,stride=128", BestByScores{128, 0, 0, 1}}}) {
    for (const char* mask : {"causal", given_documents}) {
      const auto problem = AttentionProblem::random(given_shape, mask);
      const auto starts = problem.mask.document_starts();
      const HostSelection found = selected(problem, {.options = options, .score = given_score});
      ASSERT_EQ(found.lists, std::string(options).starts_with("moba") ? 4 : 2);
      std::int64_t different = 0;
      for (std::int64_t list = 0; list < found.batch * found.lists; ++list)
        for (std::int64_t q = 0; q < given_shape.tokens; ++q) {
          const std::int64_t begin = starts.empty() ? 0 : *(std::ranges::upper_bound(starts, q) - 1);
          for (std::int64_t b = 0; b * of.block < given_shape.tokens; ++b)
            different += found.holds(list, q, b) != of.has(list, begin, q, b) ? 1 : 0;
        }
      EXPECT_EQ(different, 0) << options << ", " << mask;
      expect_one_selection(problem, options, DType::f32, given_score);
    }
  }
}

TEST(GivenScores, AreAttendedToExactly) {
  for (const char* mask : {"causal", given_documents}) {
    const auto problem = AttentionProblem::random(given_shape, mask, DType::f32, 1.5);
    expect_exact<float>(problem,
                        {.options = "moba:block=64,top=2",
                         .topology = Topology::uniform(3, 3),
                         .layout = Layout::parse("zigzag"),
                         .score = given_score},
                        mask);
  }
}

TEST(GivenScores, OfOtherPatternsAndExtentsAreRefused) {
  const auto error = [](const char* options, std::int64_t lists, std::int64_t rows, std::int64_t blocks) {
    return error_text([&] {
      comm::run_loopback(Topology::uniform(1, 1), [&](comm::Communicator& communicator) {
        const TestExec exec;
        const auto of =
            planning_problem(AttentionProblem::random(given_shape, "causal"), communicator.topology(), {});
        executor::Attention<TestExec, float> dense(exec, communicator, {plans_of("ring", of)});
        sparsity::SparseAttention<TestExec, float> sparse(communicator, dense, of,
                                                          sparsity::PatternOptions::parse(options));
        sparse.select_by_scores(exec, Array4<float, TestExec>("scores", 2, lists, rows, blocks));
      });
    });
  };
  for (const char* options : {"xattention", "vertical-slash"})
    EXPECT_THAT(error(options, 4, 555, 9), mentions(options, "use moba or infllm-v2"));
  EXPECT_EQ(error("moba:block=64", 4, 555, 9), "no error");
  EXPECT_EQ(error("infllm-v2", 2, 555, 9), "no error");
  EXPECT_THAT(error("moba:block=64", 2, 555, 9), mentions("moba", "2 lists", "give them of 4 lists"));
  EXPECT_THAT(error("infllm-v2", 2, 554, 9), mentions("554 rows", "555 rows"));
  EXPECT_THAT(error("moba:block=128", 4, 555, 9), mentions("9 blocks", "5 blocks"));
}

}  // namespace
}  // namespace annulus::test
