// Selections beside those of exact scores, in double precision: they differ only where scores are alike but
// for their rounding, and such differences are counted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/attention/comm/loopback.hpp>
#include <cmath>
#include <iostream>
#include <utility>

#include "attention/sparsity/double_precision.hpp"
#include "attention/sparsity/patterns/window_scores.hpp"

namespace annulus::test {
namespace {

/// Documents of one token, of less than a block, of one, of several, at and off the blocks of the sequence.
constexpr const char* packed_mask = "documents:0,1,64,65,199,206,320,323";

template <class T>
class ExactScores : public testing::Test {
 protected:
  /// EXPECTs that each query has the blocks by exact scores, or others whose scores differ by no more than
  /// these are rounded. Counts the queries that have others.
  template <class By>
  void expect_but_for_rounding(const AttentionProblem& problem, const By& by) {
    const HostSelection selection =
        run_sparse<T>(problem,
                      {.options = by.text(), .topology = Topology::uniform(2, 2), .selects_alone = true})
            .selection;
    for_each_query(
        problem, selection, by,
        [&](std::int64_t list, std::int64_t q, const ScoredBlocks& blocks, const std::vector<bool>& found) {
          ++queries_;
          if (found == blocks.selected()) return;
          ++swapped_;
          EXPECT_LE(blocks.distance(found), blocks.rounding)
              << by.text() << ", list " << list << ", query " << q;
        });
  }
  /// The queries that have other blocks since the last call, of so many; told and recorded.
  std::pair<std::int64_t, std::int64_t> swaps(const char* what) {
    std::cout << what << ": " << swapped_ << " of " << queries_ << " queries have other blocks\n";
    this->RecordProperty(what, std::to_string(swapped_) + " of " + std::to_string(queries_));
    return {std::exchange(swapped_, 0), std::exchange(queries_, 0)};
  }
  void expect_few_swaps(const char* what) {
    const auto [swapped, queries] = swaps(what);
    EXPECT_GT(queries, 5000) << what;
    EXPECT_LE(swapped, queries / 1000) << what;
  }

 private:
  std::int64_t swapped_ = 0, queries_ = 0;
};
using ScoreTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(ExactScores, ScoreTypes);

constexpr AttentionShape of_scores{.tokens = 420, .head_dim = 16, .heads = 4, .kv_heads = 2};

TYPED_TEST(ExactScores, SelectTheSameBlocksButForTheirRounding) {
  std::vector<AttentionProblem> problems;
  for (const char* mask : {"causal", packed_mask})
    problems.push_back(AttentionProblem::random(of_scores, mask, dtype_of<TypeParam>, 1.5));
  for (const auto& problem : problems)
    for (const ExactMoba& by : {ExactMoba{64, 2}, {128, 2}}) this->expect_but_for_rounding(problem, by);
  this->expect_few_swaps("moba");
  for (const auto& problem : problems)
    for (ExactInfLlm by : {ExactInfLlm{64, 1, 3, 40, 8}, {64, 2, 0, 1, 16}, {64, 3, 0, 1, 64}}) {
      by.type = dtype_of<TypeParam>;
      this->expect_but_for_rounding(problem, by);
    }
  this->expect_few_swaps("infllm-v2");
  for (const auto& problem : problems)
    for (const ExactXAttention& by : {ExactXAttention{64, 16, 0.6}, {128, 8, 0.7}, {64, 1, 0.5}})
      this->expect_but_for_rounding(problem, by);
  this->expect_few_swaps("xattention");
}

using ExactScoresOfAlikeBlocks = ExactScores<float>;

// Keys of odd blocks are those of the block before, some larger by the last bit: means of fp32 are the same.
TEST_F(ExactScoresOfAlikeBlocks, MaySwapThem) {
  auto problem = AttentionProblem::random(of_scores, "causal", DType::f32, 1.5);
  for (std::int64_t head = 0; head < of_scores.kv_heads; ++head)
    for (std::int64_t k = 64; k < 384; k += k % 128 == 127 ? 65 : 1) {
      const double* const from = problem.k.row(0, head, k - 64);
      double* const to = problem.k.row(0, head, k);
      for (std::int64_t c = 0; c < of_scores.head_dim; ++c)
        to[c] = k % 64 == 0 ? std::nextafter(static_cast<float>(from[c]), 9.0f) : from[c];
    }
  expect_but_for_rounding(problem, ExactMoba{64, 2});
  EXPECT_GT(swaps("moba, blocks alike").first, 0);
}

/// The masses of a window as the library rounds them, (lists, keys and block distances).
template <class T>
std::vector<ExactChoice::Masses> rounded_masses(const AttentionProblem& problem, const ExactChoice& choice,
                                                std::int64_t lists) {
  std::vector<ExactChoice::Masses> made;
  comm::run_loopback(Topology::uniform(1, 1), [&](comm::Communicator& communicator) {
    const TestExec exec;
    const std::vector<std::int64_t> starts{0, problem.shape.tokens};
    const PositionMap all = Layout().shard(starts.back(), 1, 0);
    const auto q = rows_on<T>(exec, problem.q, all), k = rows_on<T>(exec, problem.k, all);
    const sparsity::ObservedDocuments<TestExec> observed(exec, starts, false, all, choice.window, 0);
    const auto masses = sparsity::window_masses<TestExec, T>(exec, communicator,
                                                             {.q = q.memory(),
                                                              .k = k.memory(),
                                                              .positions = all,
                                                              .tokens = starts.back(),
                                                              .scale = static_cast<float>(problem.scale)},
                                                             observed, lists, choice.joint);
    exec.fence("annulus::test: masses are there");
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), masses.view());
    const auto& places = observed.places();
    for (std::int64_t list = 0; list < problem.shape.batch * lists; ++list) {
      ExactChoice::Masses& of = made.emplace_back();
      const auto mass = [&](std::int64_t i) {
        return std::ldexp(double(host(list, i)), -sparsity::mass_exponent);
      };
      for (std::int64_t i = 0; i < places.tokens; ++i) of.keys.push_back(mass(i));
      for (std::int64_t i = 0; i < places.slashes; ++i)
        of.distances.push_back(mass(places.first_slash() + i));
    }
  });
  return made;
}

// Masses are within rounding of their definition, and verticals and slashes are the largest rounded ones.
TYPED_TEST(ExactScores, OfAWindowGiveTheVerticalsAndSlashesOfTheSameMasses) {
  double worst = 0;
  for (const std::int64_t tokens : {270, 320})  // the windows' blocks cut, and whole
    for (const bool of_heads : {false, true})
      for (const ExactChoice& choice :
           {ExactChoice{.recall = 0.6, .window = 40, .sinks = 3},
            ExactChoice{.recall = 0.8, .window = 100, .local = 0}, ExactChoice{.recall = 0.7, .joint = true},
            ExactChoice{.verticals = 12, .slashes = 2, .window = 1, .local = 0}}) {
        const AttentionShape shape{.tokens = tokens, .head_dim = 16, .heads = 4, .kv_heads = 2};
        const auto problem = AttentionProblem::random(shape, "causal", dtype_of<TypeParam>, 1.5);
        const std::string text = choice.text(of_heads);
        const std::int64_t lists = of_heads ? shape.heads : shape.kv_heads;
        const std::vector<ExactChoice::Masses> rounded = rounded_masses<TypeParam>(problem, choice, lists);
        const HostSelection selection =
            run_sparse<TypeParam>(problem, {.options = text, .selects_alone = true}).selection;
        for (std::int64_t list = 0; list < shape.batch * lists; ++list) {
          const ExactChoice::Masses exact = choice.masses(problem, list, lists, 0, tokens),
                                    &here = rounded[list];
          for (std::size_t i = 0; i < exact.keys.size(); ++i)
            worst = std::max(worst, std::abs(here.keys[i] - exact.keys[i]) / (exact.keys[i] + 1e-6));
          for (std::size_t d = 0; d < exact.distances.size(); ++d)
            worst = std::max(worst,
                             std::abs(here.distances[d] - exact.distances[d]) / (exact.distances[d] + 1e-6));
          std::vector<bool> of_same(static_cast<std::size_t>(tokens * tokens)), of_exact = of_same;
          choice.select(here, 0, tokens, tokens, of_same);
          choice.select(exact, 0, tokens, tokens, of_exact);
          std::int64_t different = 0, swapped = 0;
          for (std::int64_t q = 0; q < tokens; ++q)
            for (std::int64_t k = 0; k <= q; ++k) {
              different += selection.allows(list, q, k) != of_same[q * tokens + k] ? 1 : 0;
              swapped += of_exact[q * tokens + k] != of_same[q * tokens + k] ? 1 : 0;
            }
          EXPECT_EQ(different, 0) << text << ", list " << list;
          if (on_host) {  // tensor cores' rounding swaps some of almost equal masses
            EXPECT_EQ(swapped, 0) << text << ", list " << list << ": of exact masses";
          }
        }
      }
  EXPECT_LT(worst, on_host ? 1e-5 : 1e-4);  // tensor cores cut off bits where others round
  this->RecordProperty("worst", fmt::format("{:.2g}", worst));
}

}  // namespace
}  // namespace annulus::test
