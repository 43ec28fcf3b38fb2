// train.sequences_per_pass: several sequences at once against one after the other.

#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

class Passes : public TinyTest {
 protected:
  /// Four sequences of each group in an optimizer step, of which there are three; the gradients are clipped.
  Config config(const std::string& name) const {
    return tiny_.wide(name, 0,
                      {"model.heads=4", "model.kv_heads=4", "train.micro_batches=4", "train.steps=3",
                       "train.clip_norm=0.1"});
  }
  static Config at_once(const Config& config, int sequences) {
    return copy(config, fmt::format("{} at once", sequences),
                {fmt::format("train.sequences_per_pass={}", sequences)});
  }

  // Relative, after three optimizer steps.
  static constexpr double f32_limit = 2e-6;
  static constexpr double bf16_limit = 0.002;  // other bits are rounded away
};

// Every value of what a pass may meet, with every other in some case.
TEST_F(Passes, AgreeWithOneSequenceAtATimeUnderAllSettings) {
  struct {
    int ranks, context;
    const char *schedule, *layout, *mask, *dtype;
    int zero, sequences;
  } const cases[] = {
      {1, 0, "ring", "zigzag", "causal", "f32", 0, 2},
      {1, 0, "ulysses", "contiguous", "window:20,0", "bf16", 0, 4},
      {2, 0, "ulysses", "zigzag", "causal", "f32", 3, 4},
      {2, 0, "ring", "striped", "window:20,0", "bf16", 3, 2},
      {2, 1, "ring", "zigzag", "documents", "f32", 0, 2},
      {4, 0, "ring", "zigzag", "window:20,0", "f32", 3, 2},
      {4, 0, "ulysses", "striped", "window:20,0", "f32", 0, 4},
      {4, 0, "ring", "contiguous", "causal", "bf16", 0, 4},
      {4, 0, "ulysses", "zigzag", "documents", "bf16", 3, 2},
      {4, 2, "burst", "zigzag", "documents+window:20,0", "f32", 3, 4},
  };
  for (const auto& [ranks, context, schedule, layout, mask, dtype, zero, sequences] : cases) {
    const std::string name = fmt::format("{} {} {} {} {}", ranks, schedule, mask, dtype, zero);
    SCOPED_TRACE(name);
    const bool own_masks = takes_documents_from_data(mask);  // documents end inside some sequences
    const Config one =
        with(config(name),
             {fmt::format("parallel.context={}", context), fmt::format("parallel.zero={}", zero),
              fmt::format("attention.schedule={}", schedule), fmt::format("attention.layout={}", layout),
              fmt::format("attention.mask={}", mask), fmt::format("train.dtype={}", dtype),
              fmt::format("data.sequence_length={}", own_masks ? 400 : 50)});
    const Config several = at_once(one, sequences);
    for (const Config& run_of : {one, several}) run(ranks, run_of);
    const double limit = one.train.dtype == "f32" ? f32_limit : bf16_limit;
    EXPECT_LT(difference(one, several), limit);
    for (std::size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(losses(several)[step], losses(one)[step], limit * losses(one)[step]);
      EXPECT_NEAR(metric(several, "grad_norm")[step], metric(one, "grad_norm")[step], 10 * limit);
    }
    EXPECT_EQ(last_state(one).progress.sequences_read, last_state(several).progress.sequences_read);
    expect_same_run(several, ranks, copy(several, "again"));
    // Plans are made where a sequence has other documents than the one before.
    EXPECT_EQ(std::ranges::max(metric(several, "planning_seconds")) > 0, own_masks);
  }
}

// Gradients are reduced once, as with one sequence.
TEST_F(Passes, OnePassGivesTheSameBitsUnderEveryStageOfZero) {
  const Config whole = at_once(config("run"), 4);
  run(2, whole);
  for (const int zero : {1, 2, 3})
    expect_same_run(whole, 2,
                    copy(whole, fmt::format("zero {}", zero), {fmt::format("parallel.zero={}", zero)}));
}

TEST_F(Passes, ARunGoesOnWithOtherPasses) {
  const Config whole = with(config("run"), {"attention.mask=documents", "data.sequence_length=400",
                                            "train.steps=6", "train.sequences_per_pass=2"});
  run(2, whole);
  for (const int sequences : {2, 4, 1}) {
    const Config resumed = at_once(whole, sequences);
    interrupt(whole, 3, resumed);
    EXPECT_EQ(run(2, resumed).first_step, 3);
    if (sequences == 2)
      expect_same_bits(whole, resumed);
    else
      EXPECT_LT(difference(whole, resumed), 2 * f32_limit);
  }
}

TEST_F(Passes, MetricsCountAllSequences) {
  const auto operations = [](const Config& config, std::size_t step) {
    return metric(config, "tflops")[step] * metric(config, "step_seconds")[step];
  };
  for (const char* mask : {"causal", "documents"}) {
    const Config one =
        with(config(mask), {std::string("attention.mask=") + mask, "data.sequence_length=400"});
    const Config several = at_once(one, 4);
    run(2, one);
    run(2, several);
    EXPECT_THAT(metric(several, "tokens"), testing::ElementsAre(1600, 3200, 4800));
    EXPECT_EQ(metric(several, "targets"), metric(one, "targets"));
    for (std::size_t step = 0; step < 3; ++step)
      EXPECT_NEAR(operations(several, step) / operations(one, step), 1, 1e-9);
  }
}

/// Bytes of activations that rank 0 of one holds in an optimizer step.
std::int64_t activations_of(const Config& config) {
  std::int64_t bytes = 0;
  reset_memory_peaks();  // gradients take the place of what layers have kept
  messages(1, [&](int) {
    Hooks hooks;
    hooks.updated = [&](std::int64_t, const Buffers&) {
      bytes = memory_use(on_host ? MemoryKind::host : MemoryKind::device)
                  .peak[static_cast<std::size_t>(MemoryCategory::activations)];
    };
    return std::pair(config, hooks);
  });
  return bytes;
}

TEST_F(Passes, ActivationsOfALayerAreThoseOfTheTableForEachRow) {
  for (const int sequences : {1, 2, 4}) {
    const Config shallow = with(at_once(config("shallow"), sequences), {"train.dtype=bf16"}),
                 deep = copy(shallow, "deep", {"model.layers=5"});
    const model::Config& m = deep.model;
    const std::int64_t row = 4 * m.hidden + 2 * m.head_dim * (m.heads + 2 * m.kv_heads) +
                             2 * m.heads * (m.head_dim + 2) + 4 * m.ffn + 8;  // docs/memory.md
    const std::int64_t rows = sequences * deep.data.sequence_length;
    const std::int64_t more = activations_of(deep) - activations_of(shallow);
    EXPECT_GE(more, 3 * rows * row);
    EXPECT_LT(more, 3 * (rows * row + 10 * 256));  // ten arrays, each padded
  }
}

TEST_F(Passes, WrongSettingsNameTheKeysAndTheRemedy) {
  for (const auto& [text, said] :
       {std::pair("micro_batches = 12\nsequences_per_pass = 5", "set it to 1, 2, 3, 4, 6 or 12"),
        {"sequences_per_pass = 2", "train.micro_batches = 1: set it to 1, or"},
        {"sequences_per_pass = 0", "at least 1"}})
    EXPECT_THAT(error_text([&] { Config::parse(fmt::format("[train]\n{}\n", text), "run.toml"); }),
                mentions("train.sequences_per_pass = ", said));
  // A program that makes its configuration itself is told before anything is begun, too.
  Config wrong = config("run");
  wrong.train.sequences_per_pass = 3;
  EXPECT_THAT(run_error(2, wrong), HasSubstr("train.sequences_per_pass = 3"));
  EXPECT_FALSE(fs::exists(wrong.run.folder));
}

// train.parts_every: the parts of a step add up to it, and change nothing.
TEST_F(Passes, AreTimedByPart) {
  const Config plain = with(config("plain"), {"parallel.zero=3", "memory.recompute=sequence-selective"});
  const Config timed = copy(plain, "timed", {"train.parts_every=2"});
  for (const Config& run_of : {plain, timed}) run(2, run_of);
  EXPECT_EQ(losses(timed), losses(plain));
  const std::vector<nlohmann::json> steps = records(timed);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_FALSE(steps[0].contains("parts"));
  EXPECT_FALSE(steps[2].contains("parts"));
  const nlohmann::json& parts = steps[1].at("parts");
  for (const char* part : {"other", "embedding", "projections", "feed_forward", "attention", "lm_head",
                           "attention_backward", "projections_backward", "feed_forward_backward",
                           "attention_recompute", "recompute", "sharding", "optimizer"})
    EXPECT_GT(parts.value(part, 0.0), 0.0) << part;
  EXPECT_FALSE(parts.contains("selection"));
  double sum = 0;
  for (const auto& seconds : parts) sum += seconds.get<double>();
  const double step = steps[1].at("step_seconds").get<double>();  // of the slower rank
  EXPECT_LE(sum, 1.001 * step);
  EXPECT_GT(sum, 0.5 * step);
}

}  // namespace
}  // namespace annulus::training::test
