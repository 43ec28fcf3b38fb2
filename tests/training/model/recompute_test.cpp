// What layers keep, compute again and offload makes no difference to what a model learns.

#include "model_problem.hpp"
#include "support/error_text.hpp"

namespace annulus {
namespace {

using model::ActivationOptions;
using model::Recompute;
using test::ModelProblem;
using test::on_ranks;

constexpr ModelProblem::Sequences two_sequences{0, 2};

// Tolerance of results whose sums over rows have another order. On the host that order alone makes 2e-7.
// OpenBLAS' kernels with FMA (Haswell, Zen) give a row of a product other bits where the call has fewer rows:
// then losses differ, too, and gradients by 2.9e-6 at most, by 3.2e-6 with those of Prescott. With
// OPENBLAS_CORETYPE=Sandybridge a row has the same bits in any call, and losses are equal. 2.3e-6 was seen on
// an H200.
constexpr double other_order = 5e-6;
constexpr std::int64_t length = 61;

/// Four layers, so that offloaded ones take turns.
ModelProblem problem_of(const std::string& mask, int kv_heads = 1, const test::Variant& variant = {}) {
  return ModelProblem(length, mask, false, kv_heads, 4, variant);
}

struct Setting {
  int ranks;
  const char *layout, *schedule, *mask;
};
const Setting settings[] = {{1, "contiguous", "ring", "causal"},
                            {2, "zigzag", "burst", "documents:0,7,8,20"},
                            {2, "striped", "ulysses", "window:6,0"},
                            {3, "contiguous", "all-gather", "causal"},
                            {4, "block-striped:4", "double-ring", "causal"},
                            {4, "contiguous", "helper-worker", "causal"},
                            {4, "zigzag", "topology-burst", "documents:0,30"}};

ActivationOptions options_of(std::vector<Recompute> recompute, double offload = 0,
                             std::int64_t chunk_rows = 0) {
  return {.recompute = std::move(recompute), .offload = offload, .chunk_rows = chunk_rows};
}

template <class T>
void expect_same_bits(const Setting& c, const ActivationOptions& options, int kv_heads,
                      const test::Variant& variant = {}) {
  ModelProblem problem = problem_of(c.mask, kv_heads, variant);
  const auto kept = on_ranks<T>(problem, c.ranks, c.layout, c.schedule, two_sequences);
  problem.activations = options;
  const auto result = on_ranks<T>(problem, c.ranks, c.layout, c.schedule, two_sequences);
  EXPECT_EQ(result.loss, kept.loss);
  EXPECT_EQ(result.gradients, kept.gradients);
}

const std::vector<ActivationOptions> same_bits = {
    options_of({Recompute::full}),
    options_of({Recompute::selective}),
    options_of({Recompute::none}, 1),
    options_of({Recompute::selective}, 1),
    options_of({Recompute::full}, 0.5),
    options_of({Recompute::none, Recompute::full, Recompute::selective, Recompute::none}, 0.75)};

TEST(ModelRecompute, WholePoliciesAndOffloadGiveTheSameBits) {
  for (const Setting& c : settings)
    for (std::size_t i = 0; i < same_bits.size(); ++i) {
      SCOPED_TRACE(testing::Message() << c.schedule << " " << c.layout << " " << c.mask << ", options " << i);
      expect_same_bits<float>(c, same_bits[i], 2);
    }
  for (const ActivationOptions& options : same_bits) expect_same_bits<bfloat16>(settings[1], options, 1);
}

TEST(ModelRecompute, VariantsHaveTheSameBitsUnderEveryPolicy) {
  for (const test::Variant& variant :
       {test::with_bias, test::with_norm, test::with_both, test::padded, test::padded_with_norm, test::behind,
        test::on_both_sides, test::capped, test::with_sinks, test::sinks_behind}) {
    std::vector<ActivationOptions> all = same_bits;
    all.push_back(options_of({Recompute::sequence_selective}, 0.5));
    all.back().early_positions = 30;
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(testing::Message() << variant << ", options " << i);
      expect_same_bits<float>(settings[1], all[i], 2, variant);
      if (i % 2 == 0) expect_same_bits<bfloat16>(settings[0], all[i], 1, variant);
    }
  }
}

TEST(ModelRecompute, VariantsHaveTheSameBitsUnderEveryPolicyInChunks) {
  for (const test::Variant& variant : {test::with_bias, test::with_norm, test::padded, test::behind,
                                       test::on_both_sides, test::with_sinks, test::sinks_behind}) {
    SCOPED_TRACE(variant);
    ModelProblem problem = problem_of("causal", 2, variant);
    const auto whole = on_ranks<float>(problem, 2, "zigzag", "ring", two_sequences);
    problem.activations = options_of({Recompute::none}, 0, 7);
    const auto kept = on_ranks<float>(problem, 2, "zigzag", "ring", two_sequences);
    EXPECT_LT(test::relative_error(kept.gradients, whole.gradients), other_order);
    for (const Recompute recompute : {Recompute::full, Recompute::selective}) {
      problem.activations = options_of({recompute}, 1, 7);
      const auto result = on_ranks<float>(problem, 2, "zigzag", "ring", two_sequences);
      EXPECT_EQ(result.loss, kept.loss);
      EXPECT_EQ(result.gradients, kept.gradients);
    }
  }
}

// The order of sums over rows differs, or that of attention over keys.
TEST(ModelRecompute, ChunksAgree) {
  for (const Setting& c : settings) {
    ModelProblem problem = problem_of(c.mask, 2);
    const auto kept = on_ranks<float>(problem, c.ranks, c.layout, c.schedule, two_sequences);
    const auto expect_agreement = [&](const ActivationOptions& options, const std::string& what) {
      SCOPED_TRACE(testing::Message() << c.schedule << " " << c.layout << " " << c.mask << ", " << what);
      problem.activations = options;
      const auto result = on_ranks<float>(problem, c.ranks, c.layout, c.schedule, two_sequences);
      EXPECT_NEAR(result.loss, kept.loss, 2e-6 * kept.loss);
      EXPECT_LT(test::relative_error(result.gradients, kept.gradients), other_order);
    };
    for (const std::int64_t rows : {1, 7, 64}) {
      ActivationOptions options = options_of({Recompute::sequence_selective}, 1, rows);
      options.early_positions = 30;
      expect_agreement(options, "chunks of " + std::to_string(rows));
      expect_agreement(options_of({Recompute::none}, 0, rows), "kept, chunks of " + std::to_string(rows));
      expect_agreement(options_of({Recompute::full}, 0.5, rows), "full, chunks of " + std::to_string(rows));
    }
  }
}

// Attention of the same plan with fewer queries has the bits of the whole.
TEST(ModelRecompute, SequenceSelectiveHasTheSameBits) {
  for (const Setting& c : settings)
    for (const std::int64_t early : {std::int64_t{1}, std::int64_t{30}, length}) {
      SCOPED_TRACE(testing::Message() << c.schedule << ", early " << early);
      ActivationOptions options = options_of({Recompute::sequence_selective});
      options.early_positions = early;
      expect_same_bits<float>(c, options, 2);
    }
}

TEST(ModelRecompute, RefusesAnotherNumberOfPolicies) {
  ModelProblem problem = problem_of("causal");
  problem.activations = options_of({Recompute::none, Recompute::full});
  EXPECT_THAT(error_text([&] { on_ranks<float>(problem, 1, "contiguous", "ring"); }),
              mentions("2 ", "4 layers"));
}

}  // namespace
}  // namespace annulus
