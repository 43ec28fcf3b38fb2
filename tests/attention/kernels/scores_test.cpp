// Scores of consecutive queries against double precision, and their bits on several ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include <annulus/attention/sequence/layout.hpp>

#include "attention/kernels/scores.hpp"
#include "support/attention/attention_rows.hpp"
#include "support/error_text.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

constexpr int heads = 4, kv_heads = 2, batch = 2;
constexpr std::int64_t tokens = 301;

template <class T>
struct Scores {
  int head_dim;
  std::int64_t queries;
  AttentionProblem problem =
      AttentionProblem::random({tokens, head_dim, batch, heads, kv_heads}, "causal", dtype_of<T>);
  float scale = static_cast<float>(problem.scale);

  /// Scores of one of so many ranks, (batch · heads, its keys, queries). `maxima` (batch · heads · queries)
  /// are raised.
  std::vector<float> of_rank(const PositionMap& positions, std::vector<float>& maxima) const {
    const TestExec exec;
    const auto q = rows_on<T>(exec, problem.q,
                              Layout().shard(tokens, 1, 0).slice({tokens - queries, tokens})),
               k = rows_on<T>(exec, problem.k, positions);
    const Array3<float, TestExec> scores("scores", batch * heads, positions.count, queries);
    const Array1<float, TestExec> raised("maxima", maxima.size());
    Kokkos::deep_copy(exec, raised, Array1<const float, HostExec>(maxima.data(), maxima.size()));
    attention::causal_scores<TestExec, T>(exec,
                                          {.q = q.memory(),
                                           .first_query = tokens - queries,
                                           .k = k.memory(),
                                           .k_positions = positions,
                                           .scale = scale},
                                          scores, raised);
    Kokkos::deep_copy(exec, Array1<float, HostExec>(maxima.data(), maxima.size()), raised);
    exec.fence("annulus::test: scores are there");
    const auto found = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), scores);
    return {found.data(), found.data() + found.size()};
  }

  void check() const {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", " << queries << " queries");
    std::vector<float> maxima = lowest();
    const std::vector<float> all = of_rank(Layout().shard(tokens, 1, 0), maxima);
    std::vector<float> expected = lowest();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t query = i % queries, head = i / queries / tokens;
      float& highest = expected[head * queries + query];
      highest = std::max(highest, all[i]);
    }
    EXPECT_EQ(maxima, expected);
    double worst = 0;
    for (std::int64_t head = 0; head < std::int64_t{batch} * heads; ++head) {
      for (std::int64_t position = 0; position < tokens; ++position) {
        for (std::int64_t query = 0; query < queries; ++query) {
          const float found = all[static_cast<std::size_t>((head * tokens + position) * queries + query)];
          if (position > tokens - queries + query) {
            ASSERT_EQ(found, -INFINITY) << "key " << position << ", query " << query;
            continue;
          }
          double score = 0, size = 0;
          const double* const of_query = problem.q.row(head / heads, head % heads, tokens - queries + query);
          const double* const of_key =
              problem.k.row(head / heads, head % heads / (heads / kv_heads), position);
          for (int c = 0; c < head_dim; ++c) {
            const double term = double(scale) * of_query[c] * of_key[c];
            score += term;
            size += std::abs(term);
          }
          worst = std::max(worst, std::abs(found - score) / size);
        }
      }
    }
    EXPECT_LT(worst, on_host ? 1e-6 : 2e-6);  // tensor cores cut off bits where others round
    for (const auto kind : {Layout::Kind::zigzag, Layout::Kind::striped}) {
      std::vector<float> raised = lowest();
      for (int rank = 0; rank < 3; ++rank) {
        const PositionMap positions = Layout(kind).shard(tokens, 3, rank);
        const std::vector<float> mine = of_rank(positions, raised);
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(mine.size()); ++i) {
          const std::int64_t row = i / queries % positions.count, head = i / queries / positions.count;
          ASSERT_EQ(mine[static_cast<std::size_t>(i)],
                    all[static_cast<std::size_t>((head * tokens + positions(row)) * queries + i % queries)])
              << "rank " << rank << ", row " << row;
        }
      }
      EXPECT_EQ(raised, expected);
    }
  }

  std::vector<float> lowest() const {
    return std::vector<float>(static_cast<std::size_t>(batch * heads * queries), -INFINITY);
  }
};

template <class T>
class CausalScores : public testing::Test {};
using StorageTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(CausalScores, StorageTypes);

TYPED_TEST(CausalScores, AreThoseOfDoublePrecisionWithTheSameBitsOnAnyRanks) {
  for (const int head_dim : {64, 128, 96, 80, 120, 20})
    for (const std::int64_t queries : {64, 37, 130, 1})
      Scores<TypeParam>{.head_dim = head_dim, .queries = queries}.check();
}

// Queries out of longer rows, at listed positions, with keys from their first one on and without later tiles:
// the bits are those of all keys.
TYPED_TEST(CausalScores, OfListedQueriesAreThoseFromTheFirstKeyOn) {
  for (const int head_dim : {64, 128, 264, 20}) {
    const Scores<TypeParam> of{.head_dim = head_dim, .queries = tokens};
    std::vector<float> maxima = of.lowest();
    const PositionMap all = Layout().shard(tokens, 1, 0);
    const std::vector<float> expected = of.of_rank(all, maxima);
    const TestExec exec;
    const auto q = rows_on<TypeParam>(exec, of.problem.q, all),
               k = rows_on<TypeParam>(exec, of.problem.k, all);
    constexpr std::int64_t first_row = 30;
    for (const std::int64_t rows : {211, 212}) {  // which see two of three tiles of keys
      const Array2<std::int64_t, TestExec> seen("seen", 1 + batch, rows);
      const auto seen_on_host = Kokkos::create_mirror_view(seen);
      for (std::int64_t row = 0; row < rows; ++row) {
        seen_on_host(0, row) = first_row + row;
        // Of 212 rows: from the first key on, but for the last ones of 64 queries, or none of these.
        for (int sequence = 0; sequence < batch; ++sequence)
          seen_on_host(1 + sequence, row) = rows == 211 ? (first_row + row) / (10 + 40 * sequence) * 8
                                            : row < 170 + 30 * sequence ? 0
                                                                        : row / 10;
      }
      Kokkos::deep_copy(seen, seen_on_host);
      const Array3<float, TestExec> scores("scores", batch * heads, tokens, rows);
      const Array1<float, TestExec> raised("maxima", batch * heads * rows);
      Kokkos::deep_copy(exec, raised, -INFINITY);
      attention::causal_scores<TestExec, TypeParam>(
          exec,
          {.q = Kokkos::subview(q.memory(), Kokkos::ALL, Kokkos::ALL, std::pair(first_row, first_row + rows),
                                Kokkos::ALL),
           .k = k.memory(),
           .k_positions = all,
           .scale = of.scale,
           .q_listed = seen.data(),
           .q_first = seen.data() + rows,
           .tiles = attention::KeyTiles::of(first_row + rows)},
          scores, raised);
      exec.fence("annulus::test: scores are there");
      const auto found = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), scores);
      const auto highest_found = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), raised);
      for (std::int64_t head = 0; head < std::int64_t{batch} * heads; ++head)
        for (std::int64_t row = 0; row < rows; ++row) {
          float highest = -INFINITY;
          for (std::int64_t key = 0; key < 256; ++key) {
            const float score = expected[(head * tokens + key) * tokens + first_row + row];
            ASSERT_EQ(found(head, key, row), key < seen_on_host(1 + head / heads, row) ? -INFINITY : score)
                << "head_dim " << head_dim << ", head " << head << ", key " << key << ", row " << row;
            highest = std::max(highest, found(head, key, row));
          }
          ASSERT_EQ(highest_found(head * rows + row), highest) << "head_dim " << head_dim;
        }
    }
  }
}

TEST(CausalScoresError, NamesArraysThatDoNotFit) {
  const TestExec exec;
  const Array4<float, TestExec> q("q", 1, 4, 8, 16), k("k", 1, 3, 10, 16);
  const Array3<float, TestExec> scores("scores", 4, 10, 8);
  const Array1<float, TestExec> maxima("maxima", 32);
  EXPECT_THAT(error_text([&] {
                attention::causal_scores<TestExec, float>(
                    exec, {.q = q, .k = k, .k_positions = Layout().shard(10, 1, 0)}, scores, maxima);
              }),
              mentions("(1, 4, 8, 16)", "(1, 3, 10, 16)"));
}

}  // namespace
}  // namespace annulus::test
