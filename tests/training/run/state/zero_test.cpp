// parallel.zero: training in shards against training with everything on every rank. docs/memory.md has the
// table whose rows are tests here.

#include "training/optimizer/clip.hpp"
#include "training/parameter_sharding/partition.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

class Zero : public TinyTest {
 protected:
  /// Three optimizer steps; the gradients are clipped.
  Config config(const std::string& name, int zero) const {
    return tiny_.wide(name, zero, {"train.steps=3", "train.clip_norm=0.1", "train.check_replicas=1"});
  }
  static Config with_zero(const Config& config, int zero) {
    return copy(config, fmt::format("as {}", zero), {fmt::format("parallel.zero={}", zero)});
  }
};

constexpr double rounding = 2e-6;  // what docs/memory.md promises where bits may differ

// Every pair of a schedule, a layout, a stage and a type.
TEST_F(Zero, OneSequenceGivesTheSameBitsUnderEverySchedule) {
  const std::array schedules = {"ring",       "burst",   "topology-burst", "double-ring",  "hierarchical",
                                "all-gather", "ulysses", "hybrid:2x2",     "double-ring:4"};
  const std::array layouts = {"contiguous", "zigzag", "striped", "block-striped:5"};
  const auto compare = [&](const char* schedule, const char* layout, int number) {
    const Config whole =
        with(config(fmt::format("{} {} {}", schedule, layout, number), 0),
             {"model.heads=4", "model.kv_heads=4", fmt::format("attention.schedule={}", schedule),
              fmt::format("attention.layout={}", layout), "parallel.ranks_per_node=2",
              number % 2 == 0 ? "train.dtype=f32" : "train.dtype=bf16"});
    run(4, whole);
    expect_same_run(whole, 4, with_zero(whole, 1 + number % 3));
  };
  for (std::size_t s = 0; s < schedules.size(); ++s)
    for (std::size_t l = 0; l < layouts.size(); ++l)
      compare(schedules[s], layouts[l], static_cast<int>(s + l));
  // It takes layouts of consecutive intervals alone.
  for (int number = 0; number < 6; ++number) compare("helper-worker", "contiguous", number);
}

TEST_F(Zero, OneSequenceGivesTheSameBitsOnEveryNumberOfRanksAndGroups) {
  struct {
    int ranks, context;
    bool tied;
  } const cases[] = {{2, 0, false}, {2, 1, true}, {3, 0, true}, {4, 2, false}};
  for (const auto& [ranks, context, tied] : cases) {
    const Config whole =
        with(config(fmt::format("{} {}", ranks, context), 0),
             {fmt::format("parallel.context={}", context), fmt::format("model.tied={}", tied)});
    run(ranks, whole);
    for (const int zero : {1, 2, 3}) expect_same_run(whole, ranks, with_zero(whole, zero));
  }
}

// Qwen2.5 and Qwen3, OLMo and Gemma.
TEST_F(Zero, BiasesAndNormsGiveTheSameBitsAndAgreeOnOneRank) {
  using Sets = std::vector<std::string>;
  int number = 0;
  for (const Sets& sets : {Sets{"model.qkv_bias=true"},
                           {"model.qk_norm=head"},
                           {"model.norms=behind", "model.qk_norm=heads"},
                           {"model.norms=both", "model.scaled_embedding=true", "model.tied=true"}}) {
    const Config whole = with(config(fmt::format("block {}", number++), 0), sets),
                 alone = copy(whole, "alone");
    run(1, alone);
    run(2, whole);
    EXPECT_LT(difference(alone, whole), rounding);
    for (const int zero : {1, 3}) expect_same_run(whole, 2, with_zero(whole, zero));
  }
}

TEST_F(Zero, SeveralMicroBatchesGiveTheSameBitsUnderOneAndAgreeUnderTwoAndThree) {
  for (const bool tied : {false, true}) {
    const Config whole = with(config(tied ? "tied" : "untied", 0),
                              {fmt::format("model.tied={}", tied), "train.micro_batches=3"});
    run(2, whole);
    const Config one = with_zero(whole, 1), two = with_zero(whole, 2), three = with_zero(whole, 3);
    for (const Config& sharded : {one, two, three}) run(2, sharded);
    expect_same_bits(whole, one);
    expect_same_bits(two, three);
    EXPECT_LT(difference(whole, two), rounding);
    EXPECT_GT(difference(whole, two), 0);  // else the table could promise more
  }
}

TEST_F(Zero, CopiesInGroupsAgreeWithOneCopyUnderEveryStage) {
  for (const int context : {0, 2}) {
    const Config whole = with(config(fmt::format("context {}", context), 0),
                              {fmt::format("parallel.context={}", context), "train.steps=6"});
    run(4, whole);
    std::vector<Config> hybrids;
    for (const int zero : {1, 2, 3}) {
      const Config& hybrid = hybrids.emplace_back(with(with_zero(whole, zero), {"parallel.shard=2"}));
      run(4, hybrid);
      EXPECT_LT(difference(whole, hybrid), rounding);
      EXPECT_THAT(log_of(hybrid), HasSubstr("over the 2 ranks of each of 2 groups"));
    }
    expect_same_bits(hybrids[0], hybrids[1]);
    expect_same_bits(hybrids[0], hybrids[2]);
    // All groups go on with what rank 0 has read.
    expect_same_when_resumed(hybrids[0], 4, copy(hybrids[2], "resumed"));
  }
}

TEST_F(Zero, AnyStageGoesOnFromTheCheckpointOfAnyOther) {
  const Config whole = with(config("whole", 0), {"train.steps=6"});
  run(2, whole);
  // The files hold the same but for the configuration.
  using Change = std::pair<int, int>;
  for (const auto& [before, after] : {Change{0, 3}, {3, 0}, {1, 2}, {2, 1}, {3, 3}}) {
    SCOPED_TRACE(fmt::format("from {} to {}", before, after));
    const Config first =
        copy(whole, fmt::format("{} {}", before, after),
             {fmt::format("parallel.zero={}", before), "train.schedule_steps=6", "train.steps=3"});
    run(2, first);
    const Config resumed = with(first, {fmt::format("parallel.zero={}", after), "train.steps=6"});
    EXPECT_EQ(run(2, resumed).first_step, 3);
    expect_same_bits(whole, resumed);
  }
}

TEST_F(Zero, AnyNumberOfRanksGoesOn) {
  const Config whole = with(config("whole", 3), {"train.steps=6"});
  run(2, whole);
  for (const auto& [ranks, zero] : {std::pair(1, 0), std::pair(3, 2), std::pair(4, 3)}) {
    SCOPED_TRACE(fmt::format("{} ranks, zero {}", ranks, zero));
    const Config resumed = copy(whole, fmt::format("on {}", ranks), {fmt::format("parallel.zero={}", zero)});
    interrupt(whole, 3, resumed);
    EXPECT_EQ(run(ranks, resumed).first_step, 3);
    EXPECT_LT(difference(whole, resumed), 2e-5);
  }
}

// Token 7 stands in one sequence alone. Its row makes a hidden unit of the first layer so large that the
// gradient of that unit's weight overflows, on the rank that reads it; the forward pass multiplies the unit
// by 0.
// One such step may be skipped, and nothing but the place in the data tells of it.
TEST_F(Zero, AGradientThatIsNotFiniteNamesTheRankThatMadeItAndTheTensor) {
  std::vector<Config> skipping;
  for (const auto& [zero, offload] :
       {std::pair(0, false), {1, false}, {2, false}, {3, false}, {0, true}, {3, true}}) {
    SCOPED_TRACE(fmt::format("zero {}{}", zero, offload ? ", offloaded" : ""));
    Config config = tiny_.with_a_rare_token(this->config(offload ? "host" : "run", zero));
    config.memory.offload_optimizer = offload;
    run(2, config, {}, offloading());

    edit_checkpoint(
        config, 3, [&](const model::ParameterMap& map, const Buffers& buffers, checkpoint::Progress&) {
          const std::int64_t hidden = config.model.hidden, vocabulary = config.model.vocabulary;
          const auto set = [&](std::int64_t offset, float value) {
            buffers.parameters.write(offset, {&value, 1});
          };
          const auto fill = [&](std::int64_t offset, std::int64_t count, std::int64_t stride, float value) {
            for (std::int64_t i = 0; i < count; ++i) set(offset + i * stride, value);
          };
          const model::LayerParameters& layer = map.layer(0);
          constexpr std::int64_t channel = 5;  // of the residual stream, which is 0 but for token 7
          fill(map.embedding() + channel, vocabulary, hidden, 0);
          set(map.embedding() + 7 * hidden + channel, 0.05f);
          fill(layer.attention_out + channel * 32, 32, 1, 0);
          for (const std::int64_t projection : {layer.gate_up, layer.gate_up + config.model.ffn * hidden}) {
            fill(projection, hidden, 1, 0);  // unit 0
            set(projection + channel, 2e18f);
          }
          fill(layer.down, hidden, config.model.ffn, 0);
          fill(map.final_norm(), hidden, 1, 1e6f);
        });
    const auto file = checkpoint_of(config, 3);
    const std::string before = contents(file);

    config = with(config, {"train.steps=6", "checkpoint.every=1"});
    EXPECT_THAT(run_error(2, config, {}, offloading()),
                mentions("layers.0.ffn.down of optimizer step 4", "rank 1", "train.lr"));
    EXPECT_EQ(contents(file), before);
    EXPECT_FALSE(fs::exists(checkpoint_of(config, 4)));

    const Config& skips = skipping.emplace_back(copy(config, "skips", {"train.skip_non_finite=1"}));
    interrupt(config, 3, skips);
    run(2, skips, {}, offloading());
    expect_same_state(state_of(skips, checkpoint_of(skips, 3)), state_of(skips, checkpoint_of(skips, 4)));
    EXPECT_EQ(last_state(skips).progress.skipped_steps, 1);
    EXPECT_THAT(log_of(skips), mentions("layers.0.ffn.down of optimizer step 4 is not finite; rank 1",
                                        "The step was skipped", "number 1 in a row"));
    EXPECT_EQ(metric(skips, "skipped_steps"), (std::vector<double>{0, 0, 0, 1, 1, 1}));
    expect_same_bits(skipping.front(), skips);
    for (const std::int64_t step : {4, 5}) {
      const Config resumed = copy(skips, fmt::format("resumed {}", step));
      interrupt(skips, step, resumed);
      run(2, resumed, {}, offloading());
      expect_same_bits(skips, resumed);
    }
  }
}

// A bit of the weights that a rank holds beside others.
TEST_F(Zero, AChangedBitOfHeldWeightsIsFound) {
  for (const int zero : {1, 2}) {
    const Config config = this->config("run", zero);
    // The weights of the second layer begin behind the padded parts of the units before it.
    const model::ParameterMap map(config.model);
    const parameter_sharding::Partition partition(map.units(), 3, optimizer::NormBlocks<HostExec>::size);
    const std::int64_t element = partition.padded_offset(map.layer_unit(1));
    const auto change = [&](const Buffers& held) { held.parameters.write(element, std::array{-1.0f}); };
    EXPECT_THAT(messages_when_changed(3, config, {1}, 2, change),
                Each(mentions("after optimizer step 2 not all ranks hold the same",
                              "the parameter layers.1.attention_norm of rank 1 (",
                              "is not that of the other 2 ranks")));
  }
}

// A bit of a shard that the other groups hold, too.
TEST_F(Zero, AChangedBitOfACopyIsFound) {
  for (const int groups : {2, 3}) {
    const auto texts = messages_when_changed(
        2 * groups, with(config(fmt::format("{} groups", groups), 3), {"parallel.shard=2"}), {3}, 2,
        [](const Buffers& held) { held.first_moment.write(7, std::array{1.0f}); });
    EXPECT_THAT(texts, Each(mentions("after optimizer step 2 not all ranks hold the same",
                                     "the first moment of embedding")));
    EXPECT_THAT(texts[0], groups == 2 ? mentions("differs between rank 1 (", " and rank 3 (")
                                      : mentions("of rank 3 (", "is not that of the other 2 ranks"));
  }
}

TEST_F(Zero, TheLogSaysWhatLiesWhereAndMetricsHowLongRanksWaited) {
  for (const int zero : {0, 1, 2, 3}) {
    const Config config = this->config("run", zero);
    run(2, config);
    const std::string log = log_of(config);
    const auto waited = metric(config, "exposed_sharding_seconds"), whole = metric(config, "step_seconds");
    EXPECT_EQ(waited.size(), 3u);
    for (std::size_t step = 0; step < waited.size(); ++step) {
      EXPECT_EQ(waited[step] > 0, zero > 0) << waited[step];
      EXPECT_LT(waited[step], whole[step]);
    }
    if (zero == 0) {
      EXPECT_THAT(log, Not(HasSubstr("parallel.zero")));
    } else {
      EXPECT_THAT(log, HasSubstr(fmt::format("parallel.zero = {}: the optimizer's state", zero)));
      EXPECT_THAT(log, HasSubstr(zero == 3 ? "no two ranks hold the same" : "are compared at times"));
    }
  }
}

TEST_F(Zero, WrongSettingsNameTheKey) {
  EXPECT_THAT(run_error(1, config("run", 2)), mentions("parallel.zero = 2", "parallel.zero = 0"));
  Config odd = config("run", 3);
  odd.parallel.shard = 2;
  EXPECT_THAT(run_error(3, odd), mentions("parallel.shard = 2", "3 ranks"));
  for (const Config& wrong : {config("run", 2), odd})
    EXPECT_FALSE(fs::exists(wrong.run.folder));  // not begun
  for (const auto& [text, said] : {std::pair("zero = 4", "parallel.zero = 4"),
                                   {"shard = 4", "parallel.shard = 4"},
                                   {"zero = 2\nshard = 1", "parallel.shard = 1"},
                                   {"zero = -1", "parallel.zero = -1"}})
    EXPECT_THAT(error_text([&] { Config::parse(fmt::format("[parallel]\n{}\n", text), "run.toml"); }),
                HasSubstr(said));
}

}  // namespace
}  // namespace annulus::training::test
