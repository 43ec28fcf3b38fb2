#include <gtest/gtest.h>

#include <cmath>

#include "attention/kernels/reference.hpp"
#include "support/attention/attention_problem.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::test {
namespace {

// Two tokens, one head, head dimension 1, causal. Token 1 sees scores 0 and ln 3, that is weights 1/4 and
// 3/4.
class ByHand : public testing::Test {
 protected:
  static Array column(double first, double second) {
    Array array(1, 1, 2, 1);
    array.values = {first, second};
    return array;
  }
  const Mask mask = Mask::parse("causal", 2);
  const Array q = column(5, 1), k = column(0, std::log(3.0)), v = column(4, 8), d_out = column(1, 2);
};

TEST_F(ByHand, Forward) {
  const auto result = attention::reference::forward(q, k, v, mask.rule(), 1.0);
  EXPECT_DOUBLE_EQ(result.out.values[0], 4);
  EXPECT_DOUBLE_EQ(result.out.values[1], 7);
  EXPECT_DOUBLE_EQ(result.lse.values[0], 0);
  EXPECT_DOUBLE_EQ(result.lse.values[1], std::log(4.0));
}

TEST_F(ByHand, Backward) {
  // Token 1: dP = (8, 16), d = 14, dS = (1/4·(−6), 3/4·2) = (−3/2, 3/2). Token 0: P = 1, dS = 0.
  const auto result = attention::reference::forward(q, k, v, mask.rule(), 1.0);
  const auto gradients = attention::reference::backward(
      {.q = q, .k = k, .v = v, .result = result, .d_out = d_out, .mask = mask.rule(), .scale = 1.0});
  EXPECT_NEAR(gradients.dv.values[0], 1 + 0.5, 1e-14);
  EXPECT_NEAR(gradients.dv.values[1], 1.5, 1e-14);
  EXPECT_NEAR(gradients.dq.values[0], 0, 1e-15);
  EXPECT_NEAR(gradients.dq.values[1], 1.5 * std::log(3.0), 1e-14);
  EXPECT_NEAR(gradients.dk.values[0], -1.5, 1e-14);
  EXPECT_NEAR(gradients.dk.values[1], 1.5, 1e-14);
}

TEST_F(ByHand, ScaleMultipliesTheScores) {
  Array half_k = k;
  for (double& value : half_k.values) value /= 2;
  const auto result = attention::reference::forward(q, half_k, v, mask.rule(), 2.0);
  EXPECT_DOUBLE_EQ(result.out.values[1], 7);
  EXPECT_DOUBLE_EQ(result.lse.values[1], std::log(4.0));
}

TEST_F(ByHand, ASinkTakesAShareOfTheRows) {
  // Token 1 has the weights 1/8, 3/8 and 4/8 for the sink, token 0 1/5 and 4/5.
  const attention::reference::ScoreOptions options{.soft_cap = 0, .sinks = {std::log(4.0)}};
  const auto result = attention::reference::forward(q, k, v, mask.rule(), 1.0, options);
  EXPECT_DOUBLE_EQ(result.out.values[0], 4.0 / 5);
  EXPECT_DOUBLE_EQ(result.out.values[1], (4.0 + 3 * 8) / 8);
  EXPECT_DOUBLE_EQ(result.lse.values[1], std::log(8.0));
  const auto gradients = attention::reference::backward({.q = q,
                                                         .k = k,
                                                         .v = v,
                                                         .result = result,
                                                         .d_out = d_out,
                                                         .mask = mask.rule(),
                                                         .scale = 1.0,
                                                         .options = options});
  EXPECT_NEAR(gradients.d_sinks.values[0], -(4.0 / 5 * 4.0 / 5 + 4.0 / 8 * 2 * 28.0 / 8), 1e-14);
}

TEST_F(ByHand, ASoftCapBendsTheScores) {
  const double cap = 2, score = cap * std::tanh(std::log(3.0) / cap), weight = std::exp(score);
  const auto result =
      attention::reference::forward(q, k, v, mask.rule(), 1.0, {.soft_cap = cap, .sinks = {}});
  EXPECT_DOUBLE_EQ(result.out.values[1], (4 + weight * 8) / (1 + weight));
}

class Gradients : public testing::TestWithParam<const char*> {};

// Central differences of Σ out∘d_out over every input number.
TEST_P(Gradients, EqualFiniteDifferences) {
  AttentionProblem problem = AttentionProblem::random({7, 3, 2, 4, 2}, GetParam());
  problem.soft_cap = 1.5;
  problem.add_sinks(DType::f32);
  const AttentionResult result = problem.reference();
  Array sinks = problem.sinks;
  const auto loss = [&](const Array& q, const Array& k, const Array& v) {
    const Array out = attention::reference::forward(q, k, v, problem.mask.rule(), problem.scale,
                                                    {problem.soft_cap, sinks.values})
                          .out;
    double sum = 0;
    for (std::size_t i = 0; i < out.values.size(); ++i) sum += out.values[i] * problem.d_out.values[i];
    return sum;
  };
  const auto compare = [&](const Array& gradient, Array& number, const Array& q, const Array& k,
                           const Array& v) {
    constexpr double step = 1e-5;
    for (std::size_t i = 0; i < number.values.size(); ++i) {
      const double value = number.values[i];
      number.values[i] = value + step;
      const double above = loss(q, k, v);
      number.values[i] = value - step;
      const double below = loss(q, k, v);
      number.values[i] = value;
      ASSERT_NEAR(gradient.values[i], (above - below) / (2 * step), 1e-8) << "element " << i;
    }
  };
  Array q = problem.q, k = problem.k, v = problem.v;
  compare(result.dq, q, q, k, v);
  compare(result.dk, k, q, k, v);
  compare(result.dv, v, q, k, v);
  compare(result.d_sinks, sinks, q, k, v);
}

INSTANTIATE_TEST_SUITE_P(Masks, Gradients,
                         testing::Values("full", "causal", "window:2,1", "dilated:3,2", "documents:0,3,4"));

TEST(Reference, QueryHeadsShareKvHeads) {
  const AttentionProblem grouped = AttentionProblem::random({9, 4, 2, 6, 2}, "causal");
  AttentionProblem expanded = grouped;
  expanded.shape.kv_heads = 6;
  expanded.k = expanded.v = Array(2, 6, 9, 4);
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 6; ++h) {
      std::copy_n(grouped.k.row(b, h / 3, 0), 9 * 4, expanded.k.row(b, h, 0));
      std::copy_n(grouped.v.row(b, h / 3, 0), 9 * 4, expanded.v.row(b, h, 0));
    }
  }
  const AttentionResult few = grouped.reference(), many = expanded.reference();
  EXPECT_EQ(few.out.values, many.out.values);
  EXPECT_EQ(few.dq.values, many.dq.values);
  Array dk(2, 2, 9, 4);
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 6; ++h) {
      for (int i = 0; i < 9 * 4; ++i) dk.row(b, h / 3, 0)[i] += many.dk.row(b, h, 0)[i];
    }
  }
  EXPECT_LT(relative_error(few.dk, dk), 1e-14);
}

TEST(Reference, RowsWithoutKeysGiveZeroAndMinusInfinity) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("list.txt", "annulus-block-mask 1\nblocks 3\n0: 0\n1:\n2: 0-2\nend\n");
  const AttentionProblem problem = AttentionProblem::random({6, 4}, "blocks:2," + file);
  const AttentionResult result = problem.reference();
  for (int i = 0; i < 6; ++i) {
    const bool without = i == 2 || i == 3;
    EXPECT_EQ(*result.lse.row(0, 0, i) == -infinity, without) << "row " << i;
    for (int c = 0; c < 4; ++c) {
      EXPECT_EQ(result.out.row(0, 0, i)[c] == 0, without) << "row " << i;
      EXPECT_EQ(result.dq.row(0, 0, i)[c] == 0, without) << "row " << i;
    }
  }
  for (const double value : result.dk.values) EXPECT_TRUE(std::isfinite(value));
}

TEST(Reference, NamesWhatDoesNotFit) {
  const Mask mask = Mask::parse("full", 4);
  const Array q(1, 4, 4, 8), kv(1, 2, 4, 8);
  const auto forward = [&](const Array& q, const Array& k, const Array& v, const Mask& mask) {
    return error_text([&] { attention::reference::forward(q, k, v, mask.rule(), 1.0); });
  };
  EXPECT_EQ(forward(q, kv, kv, mask), "no error");
  EXPECT_THAT(forward(q, Array(1, 3, 4, 8), kv, mask), mentions("4 heads", "3 kv heads"));
  EXPECT_THAT(forward(q, Array(1, 2, 5, 8), kv, mask), mentions("k is (1, 2, 5, 8)", "q is (1, 4, 4, 8)"));
  EXPECT_EQ(forward(q, kv, Array(1, 2, 4, 16), mask), "no error");
  EXPECT_THAT(forward(q, kv, Array(1, 2, 5, 8), mask), mentions("v is (1, 2, 5, 8)", "k is (1, 2, 4, 8)"));
  EXPECT_THAT(forward(q, kv, kv, Mask::parse("full", 5)), mentions("5 tokens", "q has 4"));
}

TEST(RelativeError, SeesNanInfinityAndShapes) {
  Array a(1, 1, 2, 1), b(1, 1, 2, 1);
  EXPECT_EQ(relative_error(a, b), 0);
  a.values = {1, -infinity};
  b.values = {1.5, -infinity};
  EXPECT_DOUBLE_EQ(relative_error(a, b), 0.5 / 1.5);
  b.values = {1, 0};
  EXPECT_EQ(relative_error(a, b), infinity);
  a.values = {1, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_EQ(relative_error(a, b), infinity);
  EXPECT_EQ(relative_error(b, Array(1, 2, 1, 1)), infinity);
}

}  // namespace
}  // namespace annulus::test
