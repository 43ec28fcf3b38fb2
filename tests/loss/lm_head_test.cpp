#include <annulus/loss/lm_head.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include <annulus/base/error.hpp>
#include <loss/reference.hpp>

namespace annulus::loss {
namespace {

using test::head_reference, test::HeadProblem, test::HeadResult;
using Matrix = Array2<float, HostExec>;
using Targets = Array1<std::int32_t, HostExec>;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float d_weight_before = 0.75f;

// Every fifth target is ignored. Values are rounded to float, so that both sides work on the same numbers.
HeadProblem random_problem(std::size_t tokens, std::size_t hidden_dim, std::size_t vocabulary,
                           float scale = 1.0f) {
  HeadProblem problem{tokens, hidden_dim, vocabulary, {}, {}, {}};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < tokens * hidden_dim; ++i) problem.hidden.push_back(scale * normal(random));
  for (std::size_t i = 0; i < vocabulary * hidden_dim; ++i) problem.weight.push_back(0.5f * normal(random));
  for (std::size_t t = 0; t < tokens; ++t)
    problem.targets.push_back(t % 5 == 2 ? ignored_target : static_cast<std::int32_t>(random() % vocabulary));
  return problem;
}

// The same problem as Views, with outputs prepared so that a value left unwritten, or overwritten, shows.
struct Case {
  Matrix hidden, weight, d_hidden, d_weight;
  Targets targets;

  explicit Case(const HeadProblem& problem)
      : hidden("hidden", problem.tokens, problem.hidden_dim),
        weight("weight", problem.vocabulary, problem.hidden_dim),
        d_hidden("d_hidden", problem.tokens, problem.hidden_dim),
        d_weight("d_weight", problem.vocabulary, problem.hidden_dim),
        targets("targets", problem.tokens) {
    for (std::size_t i = 0; i < problem.hidden.size(); ++i)
      hidden.data()[i] = static_cast<float>(problem.hidden[i]);
    for (std::size_t i = 0; i < problem.weight.size(); ++i)
      weight.data()[i] = static_cast<float>(problem.weight[i]);
    for (std::size_t t = 0; t < problem.tokens; ++t) targets(t) = problem.targets[t];
    Kokkos::deep_copy(d_hidden, nan);
    Kokkos::deep_copy(d_weight, d_weight_before);
  }

  LossSum run(LmHeadLoss<HostExec>& head, float grad_scale = 1.0f, const HostExec& exec = HostExec()) const {
    return head.forward_backward(exec, hidden, weight, targets, grad_scale, d_hidden, d_weight);
  }
};

void expect_near(const Matrix& actual, const std::vector<double>& expected, double scale, double offset,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(actual.data()[i], scale * expected[i] + offset, tolerance) << actual.label() << " at " << i;
}

bool same_bits(const Matrix& a, const Matrix& b) {
  return a.size() == b.size() && std::equal(a.data(), a.data() + a.size(), b.data());
}

TEST(HeadReference, GradientsAgreeWithFiniteDifferences) {
  HeadProblem problem = random_problem(6, 4, 9);
  const HeadResult result = head_reference(problem);
  constexpr double step = 1e-5;
  const auto slope = [&](double& value) {
    const double before = value;
    value = before + step;
    const double above = head_reference(problem).loss_sum;
    value = before - step;
    const double below = head_reference(problem).loss_sum;
    value = before;
    return (above - below) / (2 * step);
  };
  for (std::size_t i = 0; i < problem.hidden.size(); ++i)
    EXPECT_NEAR(result.d_hidden[i], slope(problem.hidden[i]), 1e-8);
  for (std::size_t i = 0; i < problem.weight.size(); ++i)
    EXPECT_NEAR(result.d_weight[i], slope(problem.weight[i]), 1e-8);
}

TEST(LmHeadLoss, AgreesWithDoubleForAllTiles) {
  const HeadProblem problem = random_problem(17, 24, 23);
  const HeadResult expected = head_reference(problem);
  constexpr float grad_scale = 0.3f;
  for (std::int64_t sequence_tile : {0, 1, 5, 17, 100}) {
    for (std::int64_t vocabulary_tile : {0, 1, 7, 23, 100}) {
      SCOPED_TRACE(fmt::format("tiles {} x {}", sequence_tile, vocabulary_tile));
      LmHeadLoss<HostExec> head({.sequence_tile = sequence_tile, .vocabulary_tile = vocabulary_tile});
      const Case test(problem);
      const LossSum loss = test.run(head, grad_scale);
      EXPECT_EQ(loss.valid, expected.valid);
      EXPECT_NEAR(loss.loss_sum, expected.loss_sum, 1e-6 * expected.loss_sum);
      expect_near(test.d_hidden, expected.d_hidden, grad_scale, 0.0, 2e-6);
      expect_near(test.d_weight, expected.d_weight, grad_scale, d_weight_before, 4e-6);
      EXPECT_EQ(head.forward(HostExec(), test.hidden, test.weight, test.targets).loss_sum, loss.loss_sum);
    }
  }
}

TEST(LmHeadLoss, AgreesWithDoubleOnASingleTokenAndASingleVocabularyEntry) {
  for (const auto& [tokens, vocabulary] :
       {std::pair(1, 1), std::pair(1, 40), std::pair(6, 1), std::pair(6, 2)}) {
    SCOPED_TRACE(fmt::format("{} tokens, vocabulary {}", tokens, vocabulary));
    const HeadProblem problem = random_problem(tokens, 8, vocabulary);
    const HeadResult expected = head_reference(problem);
    LmHeadLoss<HostExec> head;
    const Case test(problem);
    EXPECT_NEAR(test.run(head).loss_sum, expected.loss_sum, 1e-5);
    expect_near(test.d_hidden, expected.d_hidden, 1.0, 0.0, 2e-6);
    expect_near(test.d_weight, expected.d_weight, 1.0, d_weight_before, 2e-6);
  }
}

TEST(LmHeadLoss, TakesMatricesWithPaddedRows) {
  const HeadProblem problem = random_problem(11, 8, 13);
  const HeadResult expected = head_reference(problem);
  const Case test(problem);
  const auto padded = [](const Matrix& values) {
    const Matrix wide("wide", values.extent(0), values.extent(1) + 5);
    Kokkos::deep_copy(wide, nan);
    const Matrix inner =
        Kokkos::subview(wide, Kokkos::ALL, std::pair<std::size_t, std::size_t>(2, 2 + values.extent(1)));
    Kokkos::deep_copy(inner, values);
    return inner;
  };
  const Matrix d_hidden = padded(test.d_hidden), d_weight = padded(test.d_weight);
  LmHeadLoss<HostExec> head({.sequence_tile = 4, .vocabulary_tile = 5});
  head.forward_backward(HostExec(), padded(test.hidden), padded(test.weight), test.targets, 1.0f, d_hidden,
                        d_weight);
  Kokkos::deep_copy(test.d_hidden, d_hidden);
  Kokkos::deep_copy(test.d_weight, d_weight);
  expect_near(test.d_hidden, expected.d_hidden, 1.0, 0.0, 2e-6);
  expect_near(test.d_weight, expected.d_weight, 1.0, d_weight_before, 4e-6);
}

TEST(LmHeadLoss, IgnoredTargetsGiveNoLossAndNoGradient) {
  HeadProblem problem = random_problem(9, 4, 6);
  std::fill(problem.targets.begin(), problem.targets.end(), ignored_target);
  const Case test(problem);
  LmHeadLoss<HostExec> head({.sequence_tile = 4, .vocabulary_tile = 4});
  const LossSum loss = test.run(head);
  EXPECT_EQ(loss.loss_sum, 0.0);
  EXPECT_EQ(loss.valid, 0);
  expect_near(test.d_hidden, std::vector<double>(9 * 4, 0.0), 1.0, 0.0, 0.0);
  expect_near(test.d_weight, std::vector<double>(6 * 4, 0.0), 1.0, d_weight_before, 0.0);
}

TEST(LmHeadLoss, NoTokens) {
  const Case test(random_problem(0, 4, 6));
  LmHeadLoss<HostExec> head;
  const LossSum loss = test.run(head);
  EXPECT_EQ(loss.loss_sum, 0.0);
  EXPECT_EQ(loss.valid, 0);
  EXPECT_EQ(head.workspace_bytes(), 0);
}

TEST(LmHeadLoss, HugeLogitsNeitherOverflowNorLosePrecision) {
  const HeadProblem problem =
      random_problem(12, 8, 31, 2.0e4f);  // logits of the order of 1e4: exp overflows at 89
  const HeadResult expected = head_reference(problem);
  LmHeadLoss<HostExec> head({.sequence_tile = 5, .vocabulary_tile = 4});
  const Case test(problem);
  const LossSum loss = test.run(head);
  EXPECT_GT(expected.loss_sum, 1e5);
  EXPECT_NEAR(loss.loss_sum, expected.loss_sum, 1e-6 * expected.loss_sum);
  expect_near(test.d_hidden, expected.d_hidden, 1.0, 0.0, 1e-4);
  expect_near(test.d_weight, expected.d_weight, 1.0, d_weight_before, 2e-2);  // of values up to 1e5
}

TEST(LmHeadLoss, LogitsOfMinusInfinityHaveNoProbability) {
  // Entries 0 to 3 fill the first vocabulary tile and overflow to -inf; 4 and 5 have the logits 0 and log(3).
  HeadProblem problem{2, 2, 6, {}, {}, {5, 4}};
  problem.hidden = {1e30, 1.0, 1e30, 1.0};
  problem.weight = {-1e30, 0, -1e30, 0, -1e30, 0, -1e30, 0, 0, 0, 0, std::log(3.0)};
  const Case test(problem);
  LmHeadLoss<HostExec> head({.sequence_tile = 0, .vocabulary_tile = 4});
  EXPECT_NEAR(test.run(head).loss_sum, std::log(4.0 / 3.0) + std::log(4.0), 1e-6);
  for (int entry = 0; entry < 4; ++entry) EXPECT_EQ(test.d_weight(entry, 1), d_weight_before);
  EXPECT_NEAR(test.d_hidden(0, 1), (0.75 - 1.0) * std::log(3.0), 1e-6);
  EXPECT_NEAR(test.d_hidden(1, 1), 0.75 * std::log(3.0), 1e-6);
}

TEST(LmHeadLoss, NotANumberShowsInTheLoss) {
  for (float bad : {nan, std::numeric_limits<float>::infinity()}) {
    const Case test(random_problem(7, 4, 9));
    test.hidden(3, 1) = bad;
    LmHeadLoss<HostExec> head({.sequence_tile = 2, .vocabulary_tile = 4});
    EXPECT_FALSE(std::isfinite(test.run(head).loss_sum));
  }
}

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(LmHeadLoss, NamesTheFirstTargetOutOfRange) {
  for (std::int32_t wrong : {9, -2, 1 << 30}) {
    const Case test(random_problem(7, 4, 9));
    test.targets(3) = test.targets(6) = wrong;
    LmHeadLoss<HostExec> head;
    EXPECT_THAT(message_of([&] { test.run(head); }),
                testing::HasSubstr(
                    fmt::format("the target of token 3 is {}, but the vocabulary has 9 entries", wrong)));
    EXPECT_TRUE(std::isnan(test.d_hidden(0, 0)));
    EXPECT_EQ(test.d_weight(0, 0), d_weight_before);
  }
}

TEST(LmHeadLoss, NamesWhatDoesNotFit) {
  const Case test(random_problem(7, 4, 9)), other(random_problem(6, 5, 9));
  LmHeadLoss<HostExec> head;
  const auto run = [&](const Case& inputs, const Targets& targets, const Case& outputs) {
    return message_of([&] {
      head.forward_backward(HostExec(), inputs.hidden, inputs.weight, targets, 1.0f, outputs.d_hidden,
                            outputs.d_weight);
    });
  };
  EXPECT_EQ(run(test, test.targets, test), "no error");
  EXPECT_THAT(run(test, other.targets, test), testing::HasSubstr("with 6 targets"));
  EXPECT_THAT(run(test, test.targets, other), testing::HasSubstr("'d_hidden' (6 x 5)"));
  EXPECT_THAT(message_of([&] { head.forward(HostExec(), test.hidden, other.weight, test.targets); }),
              testing::HasSubstr("'weight' (9 x 5)"));
  EXPECT_THAT(message_of([&] { head.forward(HostExec(), test.hidden, Matrix("none", 0, 4), test.targets); }),
              testing::HasSubstr("no vocabulary entries"));
  EXPECT_THAT(message_of([] { LmHeadLoss<HostExec>({.sequence_tile = -1}); }),
              testing::HasSubstr("sequence_tile -1"));
  EXPECT_THAT(message_of([] { LmHeadLoss<HostExec>({.workspace_bytes = 0}); }),
              testing::HasSubstr("workspace_bytes is 0"));
}

int allocations = 0;

TEST(LmHeadLoss, WorkspaceIsBoundedCountedAndKept) {
  const std::int64_t tokens = 3000, vocabulary = 700, limit = 1 << 18;
  const Case test(random_problem(tokens, 4, vocabulary));
  const auto workspace = [] { return memory_use().current[static_cast<int>(MemoryCategory::workspace)]; };
  const std::int64_t before = workspace();
  {
    LmHeadLoss<HostExec> head({.workspace_bytes = limit});
    test.run(head);
    EXPECT_EQ(workspace() - before, head.workspace_bytes());
    EXPECT_GT(head.workspace_bytes(), limit / 2);
    EXPECT_LT(head.workspace_bytes(), limit + limit / 16);
    EXPECT_LT(20 * head.workspace_bytes(), tokens * vocabulary * 4);

    allocations = 0;
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char*, const void*, std::uint64_t) { ++allocations; });
    test.run(head);
    head.forward(HostExec(), test.hidden, test.weight, test.targets);
    const int during = allocations;
    const Matrix probe("probe", 1, 1);
    EXPECT_EQ(allocations, 1) << "the callback counts";
    Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
    EXPECT_EQ(during, 0);
  }
  EXPECT_EQ(workspace(), before);
}

TEST(LmHeadLoss, RepeatsBitForBitWhateverRanBefore) {
  const HeadProblem problem = random_problem(50, 16, 77);
  const LmHeadOptions options{.sequence_tile = 8, .vocabulary_tile = 20};
  LmHeadLoss<HostExec> fresh(options), used(options);
  const Case first(problem), second(problem), other(random_problem(90, 4, 133));
  const LossSum expected = first.run(fresh);
  other.run(used);
  EXPECT_EQ(second.run(used).loss_sum, expected.loss_sum);
  EXPECT_TRUE(same_bits(first.d_hidden, second.d_hidden));
  EXPECT_TRUE(same_bits(first.d_weight, second.d_weight));
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST(LmHeadLoss, RepeatsBitForBitOnOneThread) {
  const HeadProblem problem = random_problem(50, 16, 77);
  LmHeadLoss<HostExec> head({.sequence_tile = 8, .vocabulary_tile = 20});
  const Case many(problem), one(problem);
  const LossSum expected = many.run(head);
  EXPECT_EQ(one.run(head, 1.0f, Kokkos::OpenMP(1)).loss_sum, expected.loss_sum);
  EXPECT_TRUE(same_bits(many.d_hidden, one.d_hidden));
  EXPECT_TRUE(same_bits(many.d_weight, one.d_weight));
}
#endif

}  // namespace
}  // namespace annulus::loss
