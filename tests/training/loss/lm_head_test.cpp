

#include "support/allocations.hpp"
#include "support/error_text.hpp"
#include "training/loss/head_case.hpp"

namespace annulus::loss {
namespace {

using test::d_weight_before, test::expect_near, test::values_of, test::TestExec;
using test::head_reference, test::HeadProblem, test::HeadResult, test::random_head_problem;

using testing::HasSubstr;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class T>
class LmHeadLossOf : public testing::Test {
 public:
  using Head = LmHeadLoss<TestExec, T>;
  using Case = test::HeadCase<T>;
  static HeadProblem random_problem(std::size_t tokens, std::size_t hidden_dim, std::size_t vocabulary,
                                    float scale = 1.0f) {
    return random_head_problem<T>(tokens, hidden_dim, vocabulary, scale);
  }
  /// Loss and gradients of the problem against double precision; the loss.
  static LossSum expect_the_reference(const HeadProblem& problem, const LmHeadOptions& options,
                                      float grad_scale = 1.0f, double tolerance = 2e-6,
                                      double weight_tolerance = 4e-6, std::size_t padding = 0) {
    const HeadResult expected = head_reference(problem);
    const Case test(problem, padding);
    Head head(options);
    const LossSum loss = test.run(head, grad_scale);
    EXPECT_EQ(loss.valid, expected.valid);
    EXPECT_NEAR(loss.loss_sum, expected.loss_sum, std::max(1e-5, 1e-6 * expected.loss_sum));
    expect_near<T>(test.d_hidden, expected.d_hidden, grad_scale, 0.0, tolerance);
    expect_near<T>(test.d_weight, expected.d_weight, grad_scale, d_weight_before, weight_tolerance);
    EXPECT_EQ(test.evaluate(head).loss_sum, loss.loss_sum);
    return loss;
  }
};
using Types = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(LmHeadLossOf, Types);

TYPED_TEST(LmHeadLossOf, AgreesWithDoubleForAllTiles) {
  for (std::int64_t tile : {0, 1, 5, 17, 100}) {
    SCOPED_TRACE(fmt::format("tile {}", tile));
    this->expect_the_reference(this->random_problem(17, 24, 23), {.sequence_tile = tile}, 0.3f);
  }
}

// A team reads a row of many entries in many rounds, the last one in part; in 16 bits gradients land on
// logits of other threads. Then single tokens and entries.
TYPED_TEST(LmHeadLossOf, AgreesWithDoubleForAllSizes) {
  for (const auto& [tokens, vocabulary] :
       {std::pair(4, 4096), {4, 8200}, {4, 17003}, {1, 1}, {1, 40}, {6, 1}, {6, 2}}) {
    SCOPED_TRACE(fmt::format("{} tokens, vocabulary {}", tokens, vocabulary));
    this->expect_the_reference(this->random_problem(tokens, 8, vocabulary), {}, 1.0f, 2e-6, 2e-6);
  }
}

// Logits far below the cap, of its size, and far above, where they are all ±cap.
TYPED_TEST(LmHeadLossOf, CapsLogits) {
  for (const auto& [scale, vocabulary] : {std::pair(0.01f, 23), {1.0f, 23}, {1.0f, 8200}, {30.0f, 4096}})
    for (const std::int64_t tile : {0, 5}) {
      SCOPED_TRACE(fmt::format("scale {}, vocabulary {}, tile {}", scale, vocabulary, tile));
      HeadProblem problem = this->random_problem(17, 8, static_cast<std::size_t>(vocabulary), scale);
      problem.soft_cap = 2.5;
      this->expect_the_reference(problem, {.sequence_tile = tile, .soft_cap = 2.5f}, 0.3f, 2e-6, 2e-5);
    }
}

TYPED_TEST(LmHeadLossOf, CappedLogitsKeepTheirOrder) {
  const HeadProblem problem = this->random_problem(40, 8, 300, 100.0f);
  const typename TestFixture::Case test(problem);
  typename TestFixture::Head head, capped({.soft_cap = 1.0f});
  EXPECT_EQ(test.greedy(capped), test.greedy(head));
}

TYPED_TEST(LmHeadLossOf, TakesMatricesWithPaddedRows) {
  this->expect_the_reference(this->random_problem(11, 8, 13), {.sequence_tile = 4}, 1.0f, 2e-6, 4e-6, 5);
}

TYPED_TEST(LmHeadLossOf, IgnoredTargetsGiveNoLossAndNoGradient) {
  HeadProblem problem = this->random_problem(9, 4, 6);
  std::fill(problem.targets.begin(), problem.targets.end(), ignored_target);
  const typename TestFixture::Case test(problem);
  typename TestFixture::Head head({.sequence_tile = 4});
  const LossSum loss = test.run(head);
  EXPECT_EQ(loss.loss_sum, 0.0);
  EXPECT_EQ(loss.valid, 0);
  for (float value : values_of(test.d_hidden)) EXPECT_EQ(value, 0.0f);
  for (float value : values_of(test.d_weight)) EXPECT_EQ(value, d_weight_before);
}

TYPED_TEST(LmHeadLossOf, NoTokens) {
  const typename TestFixture::Case test(this->random_problem(0, 4, 6));
  typename TestFixture::Head head;
  const LossSum loss = test.run(head);
  EXPECT_EQ(loss.loss_sum, 0.0);
  EXPECT_EQ(loss.valid, 0);
  EXPECT_EQ(head.workspace_bytes(), 0);
}

TYPED_TEST(LmHeadLossOf, TakeGivesTheSumOfAllCallsOnce) {
  const HeadProblem first = this->random_problem(7, 8, 13), second = this->random_problem(12, 8, 31);
  const typename TestFixture::Case a(first), b(second);
  typename TestFixture::Head head;
  EXPECT_EQ(head.take(TestExec()).valid, 0);
  a.enqueue(head);
  b.enqueue(head);
  head.forward(TestExec(), a.hidden, a.weight, a.targets);
  const LossSum loss = head.take(TestExec());
  const HeadResult expected_a = head_reference(first), expected_b = head_reference(second);
  EXPECT_EQ(loss.valid, 2 * expected_a.valid + expected_b.valid);
  EXPECT_NEAR(loss.loss_sum, 2 * expected_a.loss_sum + expected_b.loss_sum, 1e-6 * loss.loss_sum);
  expect_near<TypeParam>(a.d_weight, expected_a.d_weight, 1.0, d_weight_before, 2e-6);
  EXPECT_EQ(head.take(TestExec()).valid, 0);
}

TYPED_TEST(LmHeadLossOf, HugeLogitsNeitherOverflowNorLosePrecision) {
  // logits of the order of 1e4: exp overflows at 89; gradients of the weight are up to 1e5
  EXPECT_GT(this->expect_the_reference(this->random_problem(12, 8, 31, 2.0e4f), {.sequence_tile = 5}, 1.0f,
                                       1e-4, 2e-2)
                .loss_sum,
            1e5);
}

TYPED_TEST(LmHeadLossOf, LogitsOfMinusInfinityHaveNoProbability) {
  // Entries 0 to 3 overflow to -inf; 4 and 5 have the logits 0 and 1.125.
  HeadProblem problem{2, 2, 6, {}, {}, {5, 4}};
  problem.hidden = {1e30, 1.0, 1e30, 1.0};
  problem.weight = {-1e30, 0, -1e30, 0, -1e30, 0, -1e30, 0, 0, 0, 0, 1.125};
  const HeadResult expected = head_reference(problem);
  const typename TestFixture::Case test(problem);
  typename TestFixture::Head head;
  EXPECT_NEAR(test.run(head).loss_sum, expected.loss_sum, 1e-6);
  const auto d_weight = values_of(test.d_weight), d_hidden = values_of(test.d_hidden);
  const double tolerance = std::is_same_v<TypeParam, float> ? 1e-6 : 1e-2;
  for (std::size_t entry = 0; entry < 4; ++entry) EXPECT_EQ(d_weight[2 * entry + 1], d_weight_before);
  for (std::size_t token : {0, 1})
    EXPECT_NEAR(d_hidden[2 * token + 1], expected.d_hidden[2 * token + 1], tolerance);
}

TYPED_TEST(LmHeadLossOf, NotANumberShowsInTheLoss) {
  for (float bad : {nan, std::numeric_limits<float>::infinity()}) {
    HeadProblem problem = this->random_problem(7, 4, 9);
    problem.hidden[3 * 4 + 1] = bad;
    const typename TestFixture::Case test(problem);
    typename TestFixture::Head head({.sequence_tile = 2});
    EXPECT_FALSE(std::isfinite(test.run(head).loss_sum));
  }
}

TYPED_TEST(LmHeadLossOf, TellsGreedyChoices) {
  for (const std::size_t vocabulary : {1, 23, 8200}) {
    HeadProblem problem = this->random_problem(17, 8, vocabulary);
    std::vector<int> expected;
    for (std::size_t token = 0; token < problem.tokens; ++token) {
      const auto logits = test::head_logits(problem, token);
      const auto largest = std::int32_t(std::ranges::max_element(logits) - logits.begin());
      std::int32_t& target = problem.targets[token];
      if (target != ignored_target && token % 2 == 0) target = largest;
      expected.push_back(target == largest ? 1 : 0);
    }
    const typename TestFixture::Case test(problem);
    typename TestFixture::Head head({.sequence_tile = 5});
    EXPECT_EQ(test.greedy(head), expected) << vocabulary;
    const double loss = head.take(TestExec()).loss_sum;
    EXPECT_EQ(test.evaluate(head).loss_sum, loss);
  }
}

// Entries 2 and 7000 share the largest logit of token 0; token 1 has it at 7000 alone; token 2 is no number.
TYPED_TEST(LmHeadLossOf, OfEqualLogitsTheFirstIsTheGreedyChoice) {
  HeadProblem problem{3, 2, 7100, {1, 0, 0, 1, nan, 1}, {}, {}};
  problem.weight.assign(2 * problem.vocabulary, 0.0);
  problem.weight[2 * 2] = problem.weight[2 * 7000] = problem.weight[2 * 7000 + 1] = 1.0;
  for (const auto& [target, expected] :
       {std::pair(2, std::vector{1, 0, 0}), {7000, {0, 1, 0}}, {3, {0, 0, 0}}}) {
    problem.targets.assign(3, target);
    typename TestFixture::Head head;
    EXPECT_EQ(typename TestFixture::Case(problem).greedy(head), expected) << target;
  }
}

TYPED_TEST(LmHeadLossOf, NamesTheFirstTargetOutOfRangeAndGoesOn) {
  for (std::int32_t wrong : {9, -2, 1 << 30}) {
    HeadProblem problem = this->random_problem(7, 4, 9);
    const HeadResult expected = head_reference(problem);
    const typename TestFixture::Case test(problem);
    problem.targets[3] = problem.targets[6] = wrong;
    const typename TestFixture::Case bad(problem);
    typename TestFixture::Head head({.sequence_tile = 2});
    bad.enqueue(head);
    test.enqueue(head);
    EXPECT_THAT(
        error_text([&] { head.take(TestExec()); }),
        HasSubstr(fmt::format("the target of token 3 is {}, but the vocabulary has 9 entries", wrong)));
    EXPECT_NEAR(test.run(head).loss_sum, expected.loss_sum, 1e-6 * expected.loss_sum);
  }
}

TYPED_TEST(LmHeadLossOf, NamesWhatDoesNotFit) {
  const typename TestFixture::Case test(this->random_problem(7, 4, 9)), other(this->random_problem(6, 5, 9));
  typename TestFixture::Head head;
  const auto run = [&](const auto& inputs, const auto& targets, const auto& outputs) {
    return error_text([&] {
      head.forward_backward(TestExec(), inputs.hidden, inputs.weight, targets,
                            {.d_hidden = outputs.d_hidden, .d_weight = outputs.d_weight});
    });
  };
  EXPECT_EQ(run(test, test.targets, test), "no error");
  EXPECT_THAT(run(test, other.targets, test), HasSubstr("with 6 targets"));
  EXPECT_THAT(run(test, test.targets, other), HasSubstr("'d_hidden' (6 x 5)"));
  EXPECT_THAT(error_text([&] { head.forward(TestExec(), test.hidden, other.weight, test.targets); }),
              HasSubstr("'weight' (9 x 5)"));
  const Array1<std::uint8_t, TestExec> few("few", 6);
  EXPECT_THAT(error_text([&] { head.forward(TestExec(), test.hidden, test.weight, test.targets, {}, few); }),
              mentions("'few'", "6", "7"));
  const Array2<TypeParam, TestExec> none("none", 0, 4);
  EXPECT_THAT(error_text([&] { head.forward(TestExec(), test.hidden, none, test.targets); }),
              HasSubstr("no vocabulary entries"));
  EXPECT_THAT(error_text([] { typename TestFixture::Head({.sequence_tile = -1}); }),
              HasSubstr("sequence_tile -1"));
  EXPECT_THAT(error_text([] { typename TestFixture::Head({.workspace_bytes = -5}); }),
              HasSubstr("workspace_bytes -5"));
  for (const float wrong : {-1.0f, nan})
    EXPECT_THAT(error_text([=] { typename TestFixture::Head({.soft_cap = wrong}); }), HasSubstr("soft cap"));
}

TYPED_TEST(LmHeadLossOf, WorkspaceIsBoundedCountedAndKept) {
  const std::int64_t tokens = 3000, vocabulary = 700, limit = 1 << 18;
  const typename TestFixture::Case test(this->random_problem(tokens, 4, vocabulary));
  const auto workspace = [] {
    return memory_use(Owned<Array1<float, TestExec>>::kind)
        .current[static_cast<int>(MemoryCategory::workspace)];
  };
  {
    typename TestFixture::Head warm_up({.workspace_bytes = limit});
    test.run(warm_up);  // the products have workspace of their own, and keep it
  }
  const std::int64_t before = workspace();
  {
    typename TestFixture::Head head({.workspace_bytes = limit});
    test.run(head);
    EXPECT_EQ(workspace() - before, head.workspace_bytes());
    EXPECT_GT(head.workspace_bytes(), limit / 2);
    EXPECT_LT(head.workspace_bytes(), limit + 8 * tokens + limit / 16);
    EXPECT_LT(20 * head.workspace_bytes(), tokens * vocabulary * 4);

    const annulus::test::Allocations allocations;
    test.run(head);
    head.forward(TestExec(), test.hidden, test.weight, test.targets);
    EXPECT_THAT(allocations.labels(), testing::IsEmpty());
  }
  EXPECT_EQ(workspace(), before);
}

TYPED_TEST(LmHeadLossOf, RepeatsBitForBitWhateverRanBefore) {
  const HeadProblem problem = this->random_problem(50, 16, 5077);
  const LmHeadOptions options{.sequence_tile = 8};
  typename TestFixture::Head fresh(options), used(options);
  const typename TestFixture::Case first(problem), second(problem), other(this->random_problem(90, 4, 133));
  const LossSum expected = first.run(fresh);
  other.run(used);
  EXPECT_EQ(second.run(used).loss_sum, expected.loss_sum);
  EXPECT_EQ(values_of(first.d_hidden), values_of(second.d_hidden));
  EXPECT_EQ(values_of(first.d_weight), values_of(second.d_weight));
}

#if defined(KOKKOS_ENABLE_OPENMP) && !defined(ANNULUS_TEST_ON_DEVICE)
TYPED_TEST(LmHeadLossOf, RepeatsBitForBitOnOneThread) {
  const HeadProblem problem = this->random_problem(50, 16, 77);
  typename TestFixture::Head head({.sequence_tile = 8});
  const typename TestFixture::Case many(problem), one(problem);
  const LossSum expected = many.run(head);
  EXPECT_EQ(one.run(head, 1.0f, Kokkos::OpenMP(1)).loss_sum, expected.loss_sum);
  EXPECT_EQ(values_of(many.d_hidden), values_of(one.d_hidden));
  EXPECT_EQ(values_of(many.d_weight), values_of(one.d_weight));
}
#endif

}  // namespace
}  // namespace annulus::loss
