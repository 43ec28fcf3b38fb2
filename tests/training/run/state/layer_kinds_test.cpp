// model.pattern: layers whose attention differs, in whole runs.

#include "training/model/variant.hpp"
#include "training/run/config/attention_inputs.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

using testing::DoubleNear;

class LayerKinds : public TinyTest {
 protected:
  static constexpr double f32_limit = 2e-6;  // relative, after three optimizer steps

  Config config(const std::string& name, const std::vector<std::string>& sets = {}) const {
    return with(tiny_.wide(name, 0,
                           {"model.heads=4", "model.kv_heads=4", "model.layers=4", "train.steps=3",
                            "train.micro_batches=2", "train.clip_norm=0.1"}),
                sets);
  }
  static Config with_pattern(const Config& config, const std::string& name, const std::string& pattern) {
    return copy(config, name, {pattern.empty() ? "model.pattern=[]" : "model.pattern=" + pattern});
  }
};

TEST_F(LayerKinds, PatternOfOneKindGivesTheSameBits) {
  for (const char* mask : {"causal", "documents", "window:20,0", "window:20,0+documents"}) {
    SCOPED_TRACE(mask);
    const Config plain = config(mask, {std::string("attention.mask=") + mask});
    run(2, plain);
    const bool window = mask[0] == 'w';
    const std::string rest = !window                           ? mask
                             : takes_documents_from_data(mask) ? "documents"
                                                               : "causal",
                      kind = window ? "window:20,0" : "causal";
    // The model's own base of rotary positions may be said, and that there is no scaling.
    for (const std::string& pattern : {kind, fmt::format("2*{0} theta=10000, {0} scaling=none", kind)})
      expect_same_run(plain, 2, copy(plain, pattern, {"attention.mask=" + rest, "model.pattern=" + pattern}));
  }
}

TEST_F(LayerKinds, AnyNumberOfRanksComputesTheSame) {
  constexpr const char* gemma = "2*window:11,0 theta=500 scaling=none, causal";
  const model::Block of_gemma = annulus::test::on_both_sides.block, of_gemma2 = annulus::test::capped.block,
                     of_gpt_oss = annulus::test::with_sinks.block, of_olmo = annulus::test::behind.block;
  const struct {
    int ranks, context;
    const char *pattern, *schedule, *layout, *mask;
    int zero, sequences;
    const char* recompute;
    model::Block block = {};
    float cap = 0;  // of scores and of logits
  } cases[] = {
      {2, 0, gemma, "ring", "zigzag", "causal", 0, 1, "none"},
      {3, 0, gemma, "burst", "striped", "documents", 3, 2, "selective", of_gemma},
      {4, 0, "causal rope=none, window:7,0", "all-gather", "contiguous", "causal", 2, 1, "full"},
      {4, 2, "3*causal, causal rope=none", "ulysses", "zigzag", "causal", 1, 2, "none"},
      {4, 0, "window:30,0, window:5,0", "double-ring:2", "zigzag", "documents", 0, 1, "sequence-selective",
       of_olmo},
      {4, 0, gemma, "auto", "auto", "causal", 3, 1, "['none', 'full', 'selective', 'sequence-selective']"},
      {4, 0, gemma, "hybrid:2x2", "zigzag", "causal", 0, 2, "none"},
      {3, 0, "window:11,0, causal", "burst", "zigzag", "causal", 3, 1, "selective", of_gemma2, 0.5f},
      {2, 0, "window:11,0 soft_cap=0.3, causal", "ring", "striped", "documents", 0, 1, "full", of_olmo},
      {3, 0, "window:11,0 sinks, causal sinks", "burst", "zigzag", "documents", 3, 2, "full", of_gpt_oss},
      {3, 0, "causal fraction=0.25, window:11,0", "burst", "zigzag", "documents", 3, 2, "selective",
       of_gemma},
      {4, 2, "causal sinks, window:7,0", "ulysses", "zigzag", "causal", 1, 1, "sequence-selective"}};
  int folder = 0;
  for (const auto& [ranks, context, pattern, schedule, layout, mask, zero, sequences, recompute, block, cap] :
       cases) {
    const std::string name = fmt::format("{} {} {} {} {}", ranks, schedule, mask, zero, folder++);
    SCOPED_TRACE(name);
    Config one = config(
        name, {"model.rope_scaling=linear", "model.rope_factor=2", fmt::format("model.pattern={}", pattern),
               fmt::format("attention.mask={}", mask), fmt::format("train.sequences_per_pass={}", sequences),
               // Documents end inside of some sequences.
               fmt::format("data.sequence_length={}", mask[0] == 'd' ? 400 : 50), "attention.schedule=ring",
               "attention.layout=contiguous"});
    one.model.block = block;
    one.model.soft_cap = one.model.logit_cap = cap;
    const Config many =
        copy(one, "many",
             {fmt::format("parallel.context={}", context), fmt::format("parallel.zero={}", zero),
              fmt::format("attention.schedule={}", schedule), fmt::format("attention.layout={}", layout),
              fmt::format("memory.recompute={}", recompute)});
    // As many sequences an optimizer step.
    if (context == 2) one.train.micro_batches *= 2;
    run(ranks, many);
    run(1, one);
    EXPECT_LT(difference(one, many), f32_limit);
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(losses(many)[step], losses(one)[step], f32_limit * losses(one)[step]);
      EXPECT_NEAR(metric(many, "grad_norm")[step], metric(one, "grad_norm")[step], 10 * f32_limit);
    }
    const Config alike = with_pattern(one, "alike", "");
    run(1, alike);
    EXPECT_GT(difference(one, alike), 10 * f32_limit) << "kinds make a difference";
  }
}

// They start at 0, learn without decay, and stand in checkpoints, which other shards read.
TEST_F(LayerKinds, SinksAreLearned) {
  const Config whole =
      config("whole", {"train.steps=6", "train.weight_decay=0.5", "model.pattern=window:9,0 sinks, causal",
                       "model.out_bias=true", "parallel.zero=3"});
  run(2, whole);
  const model::ParameterMap map(whole.model);
  const auto learned = [&](const char* name) {
    const model::Parameter& parameter = map.find(name);
    const State state = last_state(whole);
    const auto begin = state.parameters.begin() + parameter.offset;
    return std::vector<float>(begin, begin + parameter.size());
  };
  for (const char* name :
       {"layers.0.attention.sinks", "layers.2.attention.sinks", "layers.1.attention.out_bias"})
    EXPECT_THAT(learned(name), Each(testing::Ne(0.0f))) << name;
  expect_same_when_resumed(whole, 2, copy(whole, "resumed"));
  const Config none = with_pattern(whole, "none", "window:9,0, causal");
  interrupt(whole, 3, none);
  EXPECT_THAT(run_error(2, none), mentions("model.pattern", "sinks"));
}

TEST_F(LayerKinds, RunGoesOnWithItsPatternAlone) {
  const Config whole = config("whole", {"train.steps=6", "model.pattern=window:9,0, causal"});
  run(2, whole);
  expect_same_when_resumed(whole, 2, copy(whole, "resumed", {"memory.recompute=full"}));
  const Config other = with_pattern(whole, "other", "causal");
  interrupt(whole, 3, other);
  EXPECT_THAT(run_error(2, other), mentions("model.pattern", "window:9,0, causal"));
}

// (query, key) pairs of the mean layer: 50 · 51 / 2 under a causal mask, 10 · 50 − 45 in a window of ten
// keys.
TEST_F(LayerKinds, MetricsCountThePairsOfEachKind) {
  const Config alike = config("alike");
  const Config mixed = with_pattern(alike, "mixed", "3*window:9,0, causal");
  const double causal = 50 * 51 / 2., window = 10 * 50 - 45;
  const double of_pair = 12.0 * mixed.model.heads * mixed.model.head_dim * mixed.model.layers;
  const auto operations = [](const Config& config) {
    return metric(config, "tflops")[0] * metric(config, "step_seconds")[0] * 1e12;
  };
  run(1, alike);
  run(1, mixed);
  const double fewer = 2 * of_pair * (causal - (3 * window + causal) / 4);
  EXPECT_NEAR(operations(alike) - operations(mixed), fewer, 1e-6 * operations(alike));
  for (const auto& [recompute, expected] :
       {std::pair("full", 2.0), {"['none', 'none', 'none', 'full']", 1 + causal / (3 * window + causal)}}) {
    const Config again =
        copy(mixed, fmt::format("again {}", expected), {fmt::format("memory.recompute={}", recompute)});
    run(2, again);
    EXPECT_THAT(metric(again, "forward_attention"), Each(DoubleNear(expected, 1e-12)));
  }
}

// Layers 0, 1 and 3 have a window of ten keys; layer 2 selects from all before a query.
class SparseLayerKinds : public LayerKinds {
 protected:
  static constexpr double pairs = 150 * 151 / 2., of_window = 10 * 150 - 45;

  Config sparse(const std::string& name, const std::string& selection) const {
    return config(name, {"model.pattern=2*window:9,0 theta=500, causal", "data.sequence_length=150",
                         "attention.layout=block-striped:64", "attention.sparsity=" + selection});
  }
  static Config dense(const Config& sparse) {
    Config config = copy(sparse, "dense");
    config.attention.sparsity.clear();
    config.sparsity = {};
    return config;
  }
};

TEST_F(SparseLayerKinds, WholeSelectionGivesWhatDenseLayersGive) {
  for (const char* recompute : {"none", "full", "sequence-selective"}) {
    SCOPED_TRACE(recompute);
    Config whole = sparse(recompute, "vertical-slash:recall=1,window=20");
    // Sinks and caps of layers that do not select.
    if (*recompute == 'f')
      for (std::string& kinds : whole.model.pattern)
        kinds.replace(kinds.find("window:9,0"), 10, "window:9,0 sinks soft_cap=0.5");
    whole.memory.recompute = {recompute};
    const Config plain = dense(whole);
    run(3, whole);
    run(3, plain);
    EXPECT_LT(difference(plain, whole), f32_limit);
    for (const char* key : {"loss", "forward_attention"})
      EXPECT_LT(largest_difference(metric(plain, key), metric(whole, key)), 1e-5) << key;
    EXPECT_THAT(metric(whole, "attention_density"), Each(DoubleNear(1, 1e-12)));
  }
}

TEST_F(SparseLayerKinds, CausalLayersAloneSelect) {
  // One slash of three: 64 · 65 / 2 pairs twice and 22 · 23 / 2; columns add less than 6 · 150.
  const std::string selection = "vertical-slash:verticals=6,slashes=1,window=20";
  const Config one = sparse("one", selection),
               several = copy(one, "several",
                              {"attention.schedule=burst", "parallel.zero=3", "sparsity.audit_every=1"});
  run(1, one);
  run(4, several);
  EXPECT_LT(largest_difference(losses(one), losses(several)), 2e-5);
  const double slash = 64 * 65 + 22 * 23 / 2., all = 3 * of_window + pairs;
  for (const double density : metric(several, "attention_density")) {
    EXPECT_GT(density, (3 * of_window + slash) / all);
    EXPECT_LT(density, (3 * of_window + slash + 6 * 150) / all);
  }
  EXPECT_EQ(metric(several, "attention_recall").size(), 3u);
  const Config all_pairs = dense(one);
  run(1, all_pairs);
  EXPECT_GT(largest_difference(losses(one), losses(all_pairs)), 1e-5)
      << "what is selected makes a difference";

  Config never = copy(several, "never");
  never.sparsity = {.dense_updates = 0, .dense_layers = {"2"}, .audit_every = 0};
  const Config plain = dense(never);
  run(4, plain);
  expect_same_run(plain, 4, never);
}

TEST_F(SparseLayerKinds, ValidationOfAnotherLengthHasTheSameKinds) {
  const Config kinds = config("kinds", {"model.pattern=window:9,0 rope=none, causal"}),
               selecting = sparse("sparse", "vertical-slash:verticals=6,slashes=1,window=20");
  for (const auto& [plain, sets] :
       {std::pair(kinds, std::vector<std::string>{"attention.layout=striped", "attention.schedule=burst"}),
        {selecting, {"attention.schedule=auto"}}}) {
    const Config one = copy(plain, "one",
                            {"data.validation=" + tiny_.file("shards").string(), "data.validation_length=120",
                             "train.validate_every=1"});
    const Outcome of_one = run(1, one), of_many = run(3, copy(one, "many", sets));
    ASSERT_EQ(of_one.validation.size(), 1u);
    EXPECT_NEAR(of_many.validation[0].loss, of_one.validation[0].loss, 1e-5);
  }
}

TEST_F(LayerKinds, WhatDoesNotGoTogetherIsNamed) {
  const auto refused = [&](const std::vector<std::string>& sets) {
    return error_text([&] { config("refused", sets); });
  };
  const std::string pattern = "model.pattern=window:9,0, causal";
  EXPECT_THAT(refused({pattern, "attention.mask=window:20,0"}),
              mentions("attention.mask = 'window:20,0'", "model.pattern"));
  EXPECT_THAT(refused({pattern, "attention.mask=full"}),
              mentions("attention.mask = 'full'", "model.pattern"));
  const std::string selection = "attention.sparsity=vertical-slash:verticals=4,slashes=1,window=16";
  EXPECT_EQ(refused({pattern, selection}), "no error");
  EXPECT_THAT(refused({"model.pattern=window:9,0, window:3,0", selection}),
              mentions("attention.sparsity", "model.pattern = 'window:9,0, window:3,0'"));
  EXPECT_THAT(refused({selection, "model.soft_cap=50"}), mentions("attention.sparsity", "model.soft_cap"));
  EXPECT_THAT(refused({selection, "model.pattern=causal sinks"}), mentions("attention.sparsity", "sinks"));
  EXPECT_THAT(refused({selection, "model.pattern=window:9,0, causal soft_cap=5"}),
              mentions("attention.sparsity", "soft_cap"));
  EXPECT_EQ(refused({selection, "model.pattern=window:9,0 sinks soft_cap=5, causal"}), "no error");
  EXPECT_THAT(refused({"model.logit_cap=-1"}), mentions("model.logit_cap"));
  EXPECT_THAT(refused({"model.pattern=window:9,1"}), mentions("model.pattern", "'window:9,1'"));
  EXPECT_EQ(refused({pattern, "attention.mask=documents"}), "no error");
}

}  // namespace
}  // namespace annulus::training::test
