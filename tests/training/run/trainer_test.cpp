
#include <cmath>
#include <nlohmann/json.hpp>

#include "training/data/shard.hpp"
#include "training/io/atomic.hpp"
#include "training/run/report.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

constexpr double rounding = 2e-5;

class Trainer : public TinyTest {
 protected:
  // Same losses and parameters but for the order of sums.
  void expect_same_but_for_rounding(const Config& a, const Config& b) const {
    EXPECT_LT(largest_difference(losses(a), losses(b)), rounding);
    EXPECT_LT(largest_difference(last_state(a).parameters, last_state(b).parameters), rounding);
    EXPECT_EQ(last_state(a).progress.sequences_read, last_state(b).progress.sequences_read);
  }
};

TEST_F(Trainer, Learns) {
  Config config = tiny_.config("run", {"train.steps=60", "train.warmup_steps=5"});
  const Outcome outcome = run(1, config);
  EXPECT_EQ(outcome.first_step, 0);
  EXPECT_EQ(outcome.last_step, 60);
  const auto values = losses(config);
  EXPECT_NEAR(values.front(), std::log(257.0), 0.3);  // it starts out knowing nothing
  EXPECT_LT(outcome.last_loss, 3.2);
  double first = 0, last = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    first += values[i] / 10;
    last += values[values.size() - 1 - i] / 10;
  }
  EXPECT_NEAR(outcome.first_loss, first, 1e-12);
  EXPECT_NEAR(outcome.last_loss, last, 1e-12);
  EXPECT_GT(outcome.tokens_per_second, 0);
}

TEST_F(Trainer, AKernelWithoutTensorCoresIsAWarningOnAGpu) {
  const Config config = tiny_.config("run");  // head_dim 16, in f32
  run(1, config);
  const std::string log = log_of(config);
  const auto warning = HasSubstr("warning attention runs on the portable kernel");
  if (on_host) {
    EXPECT_THAT(log, Not(warning));
  } else {
    EXPECT_THAT(log, AllOf(warning, HasSubstr("attention.kernel = 'tensor_cores'")));
  }
}

TEST_F(Trainer, EveryRecordHasItsNumbers) {
  Config config = tiny_.config("run", {"run.peak_tflops=0.5"});
  run(2, config);
  std::int64_t step = 0;
  for (const nlohmann::json& r : records(config)) {
    ++step;
    EXPECT_EQ(r.at("step"), step);
    EXPECT_EQ(r.at("tokens"), step * 50);
    EXPECT_LE(r.at("targets"), 50);
    EXPECT_GT(r.at("targets"), 40);
    EXPECT_GT(r.at("grad_norm"), 0.0);
    EXPECT_DOUBLE_EQ(r.at("lr"), config.learning_rate().at(step - 1));
    EXPECT_NEAR(double(r.at("tokens_per_second")) * double(r.at("step_seconds")), 50, 1e-6);
    // All that one of the two ranks does for each pair and token.
    const double flops =
        model::dense_flops(config.model, 50) + model::attention_flops(config.model, 50 * 51 / 2);
    EXPECT_NEAR(double(r.at("tflops")) * double(r.at("step_seconds")), flops / 2 * 1e-12,
                1e-6 * flops * 1e-12);
    EXPECT_NEAR(double(r.at("mfu")), double(r.at("tflops")) / 0.5, 1e-9);
    EXPECT_GE(r.at("exposed_communication_seconds"), 0.0);
    EXPECT_LE(r.at("exposed_communication_seconds"), r.at("step_seconds"));
    EXPECT_GE(r.at("least_exposed_communication_seconds"), 0.0);
    EXPECT_LE(r.at("least_exposed_communication_seconds"), r.at("exposed_communication_seconds"));
    EXPECT_EQ(r.at("format_version"), 3);
    EXPECT_EQ(r.at("epoch"), 0);
    const auto& all = r.at("peak_memory_bytes");
    const auto& memory = on_host ? all : all.at("device");
    for (const char* part : {"parameters", "gradients", "optimizer", "activations", "communication", "data"})
      EXPECT_GT(memory.at(part), 0) << part;
    EXPECT_GE(memory.at("total"), memory.at("parameters").get<std::int64_t>() +
                                      memory.at("gradients").get<std::int64_t>() +
                                      memory.at("optimizer").get<std::int64_t>());
    EXPECT_GT(all.at("resident"), all.at("total"));
    if (!on_host) {
      EXPECT_GE(memory.at("pool"), memory.at("total"));
      EXPECT_GT(memory.at("libraries"), 0);
    }
  }
  EXPECT_EQ(step, 6);
}

TEST_F(Trainer, ContextRanksUnderEveryLayoutAndScheduleGiveTheLossesOfOne) {
  const Config one = tiny_.config("one");
  run(1, one);
  const auto compare = [&](int ranks, const char* layout, const char* schedule, int ranks_per_node) {
    SCOPED_TRACE(fmt::format("{} ranks, {}, {}", ranks, layout, schedule));
    const Config config = tiny_.config(
        fmt::format("{}{}{}", ranks, layout, schedule),
        {fmt::format("attention.layout={}", layout), fmt::format("attention.schedule={}", schedule),
         fmt::format("parallel.ranks_per_node={}", ranks_per_node)});
    run(ranks, config);
    expect_same_but_for_rounding(one, config);
  };
  for (const int ranks : {2, 3})
    for (const char* layout : {"zigzag", "striped"})
      for (const char* schedule : {"ring", "burst"}) compare(ranks, layout, schedule, 0);
  for (const char* schedule : {"topology-burst", "double-ring:1"}) compare(4, "zigzag", schedule, 2);
}

TEST_F(Trainer, AutoChoosesAndGoesOnWithTheSame) {
  const Config one = tiny_.config("one");
  run(1, one);
  // Links so slow between nodes that what crosses them decides.
  const fs::path cluster = fs::path(one.run.folder) / "cluster.toml";
  io::write_text_atomically(cluster, "[inter_node]\nbandwidth = 1e6\nlatency = 1e-3\n");
  Config config = tiny_.config(
      "auto", {"attention.schedule=auto", "attention.layout=auto", "attention.cluster=" + cluster.string(),
               "parallel.ranks_per_node=2", "train.steps=3"});
  const Outcome half = run(4, config);
  EXPECT_NE(half.schedule, "auto");
  EXPECT_NE(half.layout, "auto");
  config.train.steps = one.train.steps;
  const Outcome rest = run(4, config);
  EXPECT_EQ(rest.first_step, 3);
  EXPECT_EQ(rest.schedule, half.schedule);
  EXPECT_EQ(rest.layout, half.layout);
  EXPECT_THAT(log_of(config), mentions("schedule " + half.schedule, "layout " + half.layout));

  // A schedule by its name gives the same run.
  Config named = copy(config, "named",
                      {"attention.schedule=" + half.schedule, "attention.layout=" + half.layout,
                       "attention.cluster=", "train.steps=3"});
  run(4, named);
  named.train.steps = one.train.steps;
  run(4, named);
  EXPECT_EQ(losses(named), losses(config));
}

TEST_F(Trainer, DataParallelGroupsAreMicroBatches) {
  Config accumulated =
      tiny_.config("accumulated", {"train.micro_batches=4"});  // one rank, four sequences per optimizer step
  run(1, accumulated);
  Config mixed =
      tiny_.config("mixed", {"train.micro_batches=2", "parallel.context=2"});  // two groups of two ranks
  run(4, mixed);
  expect_same_but_for_rounding(accumulated, mixed);
  Config groups = tiny_.config("groups", {"parallel.context=1"});  // four groups of one rank
  run(4, groups);
  expect_same_but_for_rounding(accumulated, groups);
  // The mean over a larger batch is another one.
  const Config single = tiny_.config("single");
  run(1, single);
  EXPECT_GT(largest_difference(losses(single), losses(groups)), 1e-3);
}

TEST_F(Trainer, DocumentsOfTheDataShapeTheMask) {
  // Nearly all sequences are read; documents end inside some.
  const Config causal = tiny_.config("causal", {"data.sequence_length=700", "train.micro_batches=4"}),
               one = copy(causal, "one", {"attention.mask=documents"});
  run(1, causal);
  run(1, one);
  EXPECT_GT(largest_difference(losses(causal), losses(one)), 1e-4);
  for (const char* mask : {"documents", "documents+window:10,0"}) {
    const Config reference = copy(one, mask, {fmt::format("attention.mask={}", mask)}),
                 ranks = copy(reference, "on ranks");
    run(1, reference);
    run(3, ranks);
    expect_same_but_for_rounding(reference, ranks);
  }
}

TEST_F(Trainer, AResumedRunIsTheUninterruptedOneBitForBit) {
  for (const int ranks : {1, 2})
    for (const char* dtype : {"f32", "bf16"}) {
      const Config whole = tiny_.config(
          fmt::format("{} {}", ranks, dtype),
          {"train.micro_batches=2", fmt::format("train.dtype={}", dtype), "attention.mask=documents"});
      run(ranks, whole);
      expect_same_when_resumed(whole, ranks, copy(whole, "resumed"));
    }
}

// bf16 keeps eight bits of weights and activations: curves are near one another, not equal.
constexpr double bfloat16_rounding = 0.02;

TEST_F(Trainer, LearnsInBfloat16AsInFloat) {
  const Config single = tiny_.config("f32", {"train.steps=60", "train.warmup_steps=5"}),
               half = copy(single, "bf16", {"train.dtype=bf16"});
  run(1, single);
  const Outcome outcome = run(1, half);
  EXPECT_LT(outcome.last_loss, 3.2);
  EXPECT_THAT(outcome.device, HasSubstr("bf16"));
  const double apart = largest_difference(losses(single), losses(half));
  EXPECT_GT(apart, 1e-6);  // it is another arithmetic
  EXPECT_LT(apart, 5 * bfloat16_rounding);
}

TEST_F(Trainer, RanksInBfloat16GiveTheLossesOfOneWithinRounding) {
  Config one = tiny_.config("one", {"train.dtype=bf16"});
  run(1, one);
  for (const char* layout : {"zigzag", "striped"}) {
    const Config config =
        copy(one, layout, {fmt::format("attention.layout={}", layout), "attention.schedule=burst"});
    run(3, config);
    EXPECT_LT(largest_difference(losses(one), losses(config)), bfloat16_rounding);
  }
}

// An update of a ten-thousandth of a weight is less than bf16 resolves: weights that were kept in bf16 would
// stay where they are for ever.
TEST_F(Trainer, MasterWeightsKeepWhatBfloat16CannotHold) {
  Config config =
      tiny_.config("small", {"train.dtype=bf16", "train.lr=1e-7", "train.min_lr=1e-7", "train.weight_decay=0",
                             "train.warmup_steps=0", "checkpoint.every=1"});
  run(1, config);
  const State first = state_of(config, checkpoint_of(config, 1)), last = last_state(config);
  std::size_t moved = 0, unseen = 0;
  for (std::size_t i = 0; i < first.parameters.size(); ++i) {
    moved += first.parameters[i] != last.parameters[i];
    unseen += first.parameters[i] != last.parameters[i] &&
              float(bfloat16(first.parameters[i])) == float(bfloat16(last.parameters[i]));
  }
  EXPECT_GT(moved, first.parameters.size() / 2);
  EXPECT_GT(unseen, moved * 9 / 10);
}

TEST_F(Trainer, AnotherTypeIsABranch) {
  Config whole = tiny_.config("whole", {"train.steps=3"});
  run(1, whole);
  Config half = with(whole, {"train.steps=6", "train.dtype=bf16"});
  EXPECT_THAT(run_error(1, half), HasSubstr("train.dtype = 'bf16' differs from 'f32'"));
  half.run.folder = tiny_.config("half").run.folder;
  const Outcome outcome = run(1, half, ResumePolicy::parse(checkpoint_of(whole, 3).string()));
  EXPECT_EQ(outcome.first_step, 3);
  EXPECT_EQ(outcome.last_step, 6);
}

TEST_F(Trainer, AnyNumberOfRanksGoesOn) {
  Config whole = tiny_.config("whole", {"train.micro_batches=2"});
  run(2, whole);
  struct Continuation {
    int ranks, context, micro_batches;
  };
  for (const auto& [ranks, context, micro_batches] :
       {Continuation{1, 0, 2}, Continuation{3, 0, 2}, Continuation{2, 1, 1}, Continuation{4, 2, 1}}) {
    SCOPED_TRACE(ranks);
    const Config resumed = copy(
        whole, fmt::format("{} {}", ranks, context),
        {fmt::format("parallel.context={}", context), fmt::format("train.micro_batches={}", micro_batches)});
    interrupt(whole, 3, resumed);
    run(ranks, resumed);
    expect_same_but_for_rounding(whole, resumed);
  }
}

// Token 7 stands in one sequence alone, and its embedding is no number.
TEST_F(Trainer, ALossThatIsNotFiniteNamesStepAndRankAndChangesNothing) {
  Config config = tiny_.with_a_rare_token(tiny_.config("run", {"train.steps=3"}));
  run(2, config);

  edit_checkpoint(config, 3,
                  [&](const model::ParameterMap& map, const Buffers& buffers, checkpoint::Progress&) {
                    const float none = std::nanf("");
                    buffers.parameters.write(map.embedding() + 7 * config.model.hidden, {&none, 1});
                  });
  const auto file = checkpoint_of(config, 3);
  const std::string before = contents(file);

  config.train.steps = 6;
  config.checkpoint.every = 1;
  EXPECT_THAT(run_error(2, config), mentions("optimizer step 4 is not finite", "rank 1", "train.lr"));
  EXPECT_EQ(contents(file), before);
  EXPECT_FALSE(fs::exists(checkpoint_of(config, 4)));
  EXPECT_EQ(losses(config).size(), 3u);
}

TEST_F(Trainer, SkipsSoManyStepsThatAreNotFiniteInARow) {
  Config config = tiny_.config("run", {"train.steps=3", "checkpoint.every=1", "train.skip_non_finite=2"});
  run(2, config);
  EXPECT_EQ(metric(config, "skipped_steps"), std::vector<double>(3, 0.0));
  // No number, and the number again.
  float gain = 0;
  const auto set_gain = [&](std::int64_t step, bool finite) {
    edit_checkpoint(config, step,
                    [&](const model::ParameterMap& map, const Buffers& buffers, checkpoint::Progress&) {
                      if (!finite) buffers.parameters.read(map.final_norm(), {&gain, 1});
                      const float value = finite ? gain : std::nanf("");
                      buffers.parameters.write(map.final_norm(), {&value, 1});
                    });
  };
  set_gain(3, false);
  config.train.steps = 5;
  EXPECT_TRUE(std::isnan(run(2, config).last_loss)) << "no step had a loss";
  config.train.steps = 8;
  EXPECT_THAT(run_error(2, config), mentions("the loss of optimizer step 6 is not finite", "rank 0",
                                             "the gradient of", "train.skip_non_finite"));
  const State before = state_of(config, checkpoint_of(config, 3)),
              after = state_of(config, checkpoint_of(config, 5));
  EXPECT_TRUE(before.first_moment == after.first_moment);
  EXPECT_TRUE(before.second_moment == after.second_moment);
  EXPECT_EQ(after.progress.skipped_steps, 2);
  EXPECT_EQ(after.progress.skipped_in_a_row, 2);
  EXPECT_GT(after.progress.sequences_read, before.progress.sequences_read);
  // A row does not begin anew with a process.
  EXPECT_THAT(run_error(2, config), HasSubstr("the loss of optimizer step 6 is not finite"));
  EXPECT_EQ(losses(config), (std::vector<double>{losses(config)[0], losses(config)[1], losses(config)[2],
                                                 INFINITY, INFINITY}));
  // It ends with a step that is finite.
  set_gain(5, true);
  const Outcome outcome = run(2, config);
  EXPECT_EQ(outcome.last_step, 8);
  EXPECT_LT(outcome.last_loss, 10);
  EXPECT_EQ(last_state(config).progress.skipped_steps, 2);
  EXPECT_EQ(last_state(config).progress.skipped_in_a_row, 0);
}

TEST_F(Trainer, StepsThatStandOutAreSpikes) {
  SpikeWatch watch;
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(watch.observe(3 + 0.1 * (i % 3), 1 + 0.2 * (i % 2))) << i;
  EXPECT_FALSE(watch.observe(3.3, 0.1));
  EXPECT_TRUE(watch.observe(4.0, 1));
  EXPECT_TRUE(watch.observe(3.1, 9));
  EXPECT_TRUE(watch.observe(NAN, 1));
  EXPECT_FALSE(watch.observe(3.1, 1));
}

// Every token is a document: none has a next one to predict.
TEST_F(Trainer, StepsWithoutTargetsAreTold) {
  const std::string shard = tiny_.shard("single.h5", std::vector<std::int64_t>(400, 1));
  const Config config = tiny_.config("run", {"data.shards=" + shard, "train.steps=3"});
  run(2, config);
  EXPECT_EQ(losses(config), std::vector<double>(3, 0.0));
  EXPECT_EQ(metric(config, "targets"), std::vector<double>(3, 0.0));
  EXPECT_THAT(log_of(config), mentions("optimizer step 1: none of its", "3 of 3 optimizer steps"));
  Config usual = tiny_.config("usual", {"train.steps=3"});
  run(2, usual);
  EXPECT_THAT(log_of(usual), Not(HasSubstr("target")));
}

// Sequences have few counted tokens, one has none: the mean of a step is over all that count, whoever has
// them.
TEST_F(Trainer, CountsTheTokensThatTheLossMaskSays) {
  constexpr std::int64_t length = 50, of_step = 4 * length, steps = 2;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mask;
  std::vector<double> counted(steps);
  for (std::int64_t i = 0; i <= steps * of_step; ++i) {
    const bool counts = i % 7 == 3 && (i - 1) / length != 2 && (i > 250 || i % 2 == 0);
    tokens.push_back(static_cast<std::int32_t>('a' + i * i % 23));
    mask.push_back(counts ? 1 : 0);
    if (counts) ++counted[static_cast<std::size_t>((i - 1) / of_step)];
  }
  data::write_shard(tiny_.file("masked.h5"), *data::make_byte_tokenizer(), tokens,
                    std::vector<std::int64_t>{0}, mask);
  std::vector<double> alone;
  const struct {
    int ranks, micro_batches, at_once, context;
  } cases[] = {{1, 4, 1, 1}, {1, 4, 4, 1}, {2, 2, 1, 1}, {4, 1, 1, 1}, {4, 2, 2, 2}};
  for (const auto& [ranks, micro_batches, at_once, context] : cases) {
    const std::string name = fmt::format("{} {} {} {}", ranks, micro_batches, at_once, context);
    const Config config = tiny_.config(
        name,
        {"data.shuffle=false", "data.shards=" + tiny_.file("masked.h5").string(),
         fmt::format("train.steps={}", steps), fmt::format("train.micro_batches={}", micro_batches),
         fmt::format("train.sequences_per_pass={}", at_once), fmt::format("parallel.context={}", context)});
    run(ranks, config);
    EXPECT_EQ(metric(config, "targets"), counted) << name;
    EXPECT_THAT(log_of(config),
                mentions("optimizer step 1: 1 of its 4 sequences", "1 of 8 sequences had no"));
    const std::vector<double> found = losses(config);
    if (alone.empty()) alone = found;
    for (std::size_t step = 0; step < found.size(); ++step)
      EXPECT_NEAR(found[step], alone[step], 1e-5 * alone[step]) << name;
  }
  EXPECT_EQ(alone.size(), 2u);
}

TEST_F(Trainer, WrongCombinationsNameTheKeys) {
  const struct {
    int ranks;
    std::vector<std::string> changes, named;
  } cases[] = {{3, {"parallel.context=2"}, {"parallel.context = 2", "3 ranks"}},
               {1, {"parallel.context=4"}, {"parallel.context = 4"}},
               {1, {"data.sequence_length=1048576"}, {"longer than the data"}},
               {1, {"data.shards=[]"}, {"data.shards is empty"}},
               {1, {"data.shards=/none/such"}, {"/none/such"}},
               {1, {"model.vocabulary=100"}, {"model.vocabulary = 100", "257"}},
               {1, {"attention.kernel=magic"}, {"attention.kernel = 'magic'", "portable"}},
               // Tensor cores on a CPU or without 16 bits, and the kernel of the other side of a PCI bus.
               {1,
                {"attention.kernel=tensor_cores"},
                {"attention.kernel = 'tensor_cores'", on_host ? "run.device" : "train.dtype = 'bf16'"}},
               {1,
                {on_host ? "attention.kernel=mma" : "attention.kernel=host_simd"},
                {"attention.kernel", "run.device"}},
               {1, {"attention.mask=full"}, {"attention.mask = 'full'"}},
               {1, {"attention.mask=window:8,1"}, {"attention.mask = 'window:8,1'", "causal+window:8,1"}}};
  for (const auto& [ranks, changes, named] : cases) {
    const std::string said = run_error(ranks, tiny_.config("run", changes));
    for (const std::string& name : named) EXPECT_THAT(said, HasSubstr(name)) << changes.front();
  }
  // Configurations that a program makes itself have not been checked.
  Config unchecked = tiny_.config("run");
  unchecked.attention.schedule = "circle";
  EXPECT_THAT(run_error(1, unchecked), mentions("attention.schedule", "circle"));
  unchecked.attention.schedule = "ring";
  unchecked.attention.mask = "window:3";
  EXPECT_THAT(run_error(1, unchecked), HasSubstr("attention.mask"));
  unchecked = tiny_.config("run");
  unchecked.run.device = "gpu";
  if (!has_device) {
    EXPECT_THAT(run_error(1, unchecked), HasSubstr("run.device = 'gpu'"));
  }
  EXPECT_FALSE(fs::exists(tiny_.config("run").run.folder));  // nothing was begun
}

}  // namespace
}  // namespace annulus::training::test
