#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/data/shard.hpp>
#include <annulus/data/tokenizer.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/json_lines.hpp>
#include <annulus/model/config.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "support/error_text.hpp"
#include "support/exec.hpp"
#include "train/compare_runs.hpp"
#include "train/tiny_run.hpp"

namespace annulus::train {
namespace {

namespace fs = std::filesystem;
using annulus::train::test::checkpoint_of;
using annulus::train::test::edit_checkpoint;
using annulus::train::test::expect_same_bits;
using annulus::train::test::interrupt;
using annulus::train::test::largest_difference;
using annulus::train::test::last_state;
using annulus::train::test::log_of;
using annulus::train::test::losses;
using annulus::train::test::metric;
using annulus::train::test::run;
using annulus::train::test::State;
using annulus::train::test::state_of;
using annulus::train::test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr double rounding = 2e-5;

class Trainer : public testing::Test {
 protected:
  // Same losses and parameters but for the order of sums.
  void expect_same_but_for_rounding(const Config& a, const Config& b) const {
    EXPECT_LT(largest_difference(losses(a), losses(b)), rounding);
    EXPECT_LT(largest_difference(last_state(a).parameters, last_state(b).parameters), rounding);
    EXPECT_EQ(last_state(a).progress.sequences_read, last_state(b).progress.sequences_read);
  }

  const TinyRun tiny_;
};

TEST_F(Trainer, Learns) {
  Config config = tiny_.config("run");
  config.train.steps = 60;
  config.train.warmup_steps = 5;
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
  const auto warning = HasSubstr("warning attention runs on the portable kernel, some 50 times slower");
  if (annulus::test::on_host) {
    EXPECT_THAT(log, Not(warning));
  } else {
    EXPECT_THAT(log, AllOf(warning, HasSubstr("bf16"), HasSubstr("attention.kernel = 'tensor_cores'")));
  }
}

TEST_F(Trainer, EveryRecordHasItsNumbers) {
  Config config = tiny_.config("run");
  config.run.peak_tflops = 0.5;
  run(2, config);
  std::int64_t step = 0;
  io::read_json_lines(fs::path(config.run.folder) / "metrics.jsonl", [&](const nlohmann::json& r,
                                                                         std::int64_t) {
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
    EXPECT_EQ(r.at("format_version"), 3);
    EXPECT_EQ(r.at("epoch"), 0);
    const auto& all = r.at("peak_memory_bytes");
    const auto& memory = annulus::test::on_host ? all : all.at("device");
    for (const char* part : {"parameters", "gradients", "optimizer", "activations", "communication", "data"})
      EXPECT_GT(memory.at(part), 0) << part;
    EXPECT_GE(memory.at("total"), memory.at("parameters").get<std::int64_t>() +
                                      memory.at("gradients").get<std::int64_t>() +
                                      memory.at("optimizer").get<std::int64_t>());
    EXPECT_GT(all.at("resident"), all.at("total"));
    if (!annulus::test::on_host) {
      EXPECT_GE(memory.at("pool"), memory.at("total"));
      EXPECT_GT(memory.at("libraries"), 0);
    }
  });
  EXPECT_EQ(step, 6);
}

TEST_F(Trainer, ContextRanksInEveryLayoutGiveTheLossesOfOne) {
  const Config one = tiny_.config("one");
  run(1, one);
  for (const int ranks : {2, 3})
    for (const char* layout : {"zigzag", "striped"})
      for (const char* schedule : {"ring", "burst"}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + layout + ", " + schedule);
        Config config = tiny_.config(std::to_string(ranks) + layout + schedule);
        config.attention.layout = layout;
        config.attention.schedule = schedule;
        run(ranks, config);
        expect_same_but_for_rounding(one, config);
      }
}

TEST_F(Trainer, RingsOfNodesGiveTheLossesOfOne) {
  const Config one = tiny_.config("one");
  run(1, one);
  for (const char* schedule : {"topology-burst", "double-ring:1"}) {
    SCOPED_TRACE(schedule);
    Config config = tiny_.config(std::string("nodes ") + schedule[0]);
    config.attention.schedule = schedule;
    config.parallel.ranks_per_node = 2;
    run(4, config);
    expect_same_but_for_rounding(one, config);
  }
}

TEST_F(Trainer, AutoChoosesAndGoesOnWithTheSame) {
  const Config one = tiny_.config("one");
  run(1, one);
  // Links so slow between nodes that what crosses them decides.
  const fs::path cluster = fs::path(one.run.folder) / "cluster.toml";
  io::write_text_atomically(cluster, "[inter_node]\nbandwidth = 1e6\nlatency = 1e-3\n");
  Config config = tiny_.config("auto");
  config.attention.schedule = "auto";
  config.attention.layout = "auto";
  config.attention.cluster = cluster.string();
  config.parallel.ranks_per_node = 2;
  config.train.steps = 3;
  const Outcome half = run(4, config);
  EXPECT_NE(half.schedule, "auto");
  EXPECT_NE(half.layout, "auto");
  config.train.steps = one.train.steps;
  const Outcome rest = run(4, config);
  EXPECT_EQ(rest.first_step, 3);
  EXPECT_EQ(rest.schedule, half.schedule);
  EXPECT_EQ(rest.layout, half.layout);
  EXPECT_THAT(log_of(config),
              HasSubstr("attention was chosen: schedule " + half.schedule + ", layout " + half.layout));

  // The same schedule by its name gives the same run.
  Config named = config;
  named.run.folder = tiny_.config("named").run.folder;
  named.attention.schedule = half.schedule;
  named.attention.layout = half.layout;
  named.attention.cluster.clear();
  named.train.steps = 3;
  run(4, named);
  named.train.steps = one.train.steps;
  run(4, named);
  EXPECT_EQ(losses(named), losses(config));
}

TEST_F(Trainer, DataParallelGroupsAreMicroBatches) {
  Config accumulated = tiny_.config("accumulated");  // one rank, four sequences per optimizer step
  accumulated.train.micro_batches = 4;
  run(1, accumulated);
  Config mixed = tiny_.config("mixed");  // two groups of two ranks
  mixed.train.micro_batches = 2;
  mixed.parallel.context = 2;
  run(4, mixed);
  expect_same_but_for_rounding(accumulated, mixed);
  Config groups = tiny_.config("groups");  // four groups of one rank
  groups.parallel.context = 1;
  run(4, groups);
  expect_same_but_for_rounding(accumulated, groups);
  // The mean over a larger batch is another one.
  const Config single = tiny_.config("single");
  run(1, single);
  EXPECT_GT(largest_difference(losses(single), losses(groups)), 1e-3);
}

TEST_F(Trainer, DocumentsOfTheDataShapeTheMask) {
  Config causal = tiny_.config("causal"), one = tiny_.config("one");
  for (Config* config : {&causal, &one}) {  // nearly all sequences are read; documents end inside some
    config->data.sequence_length = 700;
    config->train.micro_batches = 4;
  }
  one.attention.mask = "documents";
  run(1, causal);
  run(1, one);
  EXPECT_GT(largest_difference(losses(causal), losses(one)), 1e-4);
  for (const char* mask : {"documents", "documents+window:10,0"}) {
    Config reference = one, ranks = one;
    reference.attention.mask = ranks.attention.mask = mask;
    reference.run.folder = tiny_.folder().file(std::string("one ") + mask);
    ranks.run.folder = tiny_.folder().file(std::string("three ") + mask);
    run(1, reference);
    run(3, ranks);
    expect_same_but_for_rounding(reference, ranks);
  }
}

TEST_F(Trainer, PlansForOtherDocumentsAreMadeAndTimed) {
  for (const char* mask : {"causal", "documents"}) {
    Config config = tiny_.config(mask);
    config.data.sequence_length = 700;
    config.train.micro_batches = 4;
    config.attention.mask = mask;
    run(2, config);
    const auto planning = metric(config, "planning_seconds"), whole = metric(config, "step_seconds");
    EXPECT_EQ(planning.size(), 6u);
    for (std::size_t step = 0; step < planning.size(); ++step) EXPECT_LT(planning[step], whole[step]);
    const auto planned = std::ranges::count_if(planning, [](double seconds) { return seconds > 0; });
    // Most sequences have documents of their own, some begin and end inside one.
    if (std::string_view(mask) == "documents")
      EXPECT_GE(planned, 2);
    else
      EXPECT_EQ(planned, 0);
  }
}

TEST_F(Trainer, AResumedRunIsTheUninterruptedOneBitForBit) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    Config whole = tiny_.config("whole" + std::to_string(ranks));
    whole.train.micro_batches = 2;
    whole.attention.mask = "documents";
    run(ranks, whole);
    Config resumed = whole;
    resumed.run.folder = tiny_.folder().file("resumed" + std::to_string(ranks));
    interrupt(whole, 3, resumed);
    const Outcome outcome = run(ranks, resumed);
    EXPECT_EQ(outcome.first_step, 3);
    EXPECT_EQ(outcome.last_step, 6);
    expect_same_bits(whole, resumed);
  }
}

// bf16 keeps eight bits of weights and activations: curves are near one another, not equal.
constexpr double bfloat16_rounding = 0.02;

TEST_F(Trainer, LearnsInBfloat16AsInFloat) {
  Config single = tiny_.config("f32"), half = tiny_.config("bf16");
  for (Config* config : {&single, &half}) {
    config->train.steps = 60;
    config->train.warmup_steps = 5;
  }
  half.train.dtype = "bf16";
  run(1, single);
  const Outcome outcome = run(1, half);
  EXPECT_LT(outcome.last_loss, 3.2);
  EXPECT_THAT(outcome.device, HasSubstr("bf16"));
  const double apart = largest_difference(losses(single), losses(half));
  EXPECT_GT(apart, 1e-6);  // it is another arithmetic
  EXPECT_LT(apart, 5 * bfloat16_rounding);
}

TEST_F(Trainer, RanksInBfloat16GiveTheLossesOfOneWithinRounding) {
  Config one = tiny_.config("one");
  one.train.dtype = "bf16";
  run(1, one);
  for (const char* layout : {"zigzag", "striped"}) {
    Config config = one;
    config.run.folder = tiny_.config(layout).run.folder;
    config.attention.layout = layout;
    config.attention.schedule = "burst";
    run(3, config);
    EXPECT_LT(largest_difference(losses(one), losses(config)), bfloat16_rounding);
  }
}

// An update of a ten-thousandth of a weight is less than bf16 resolves: weights that were kept in bf16 would
// stay where they are for ever.
TEST_F(Trainer, MasterWeightsKeepWhatBfloat16CannotHold) {
  Config config = tiny_.config("small");
  config.train.dtype = "bf16";
  config.train.lr = config.train.min_lr = 1e-7;
  config.train.weight_decay = 0;
  config.train.warmup_steps = 0;
  config.checkpoint.every = 1;
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

TEST_F(Trainer, AResumedRunInBfloat16IsTheUninterruptedOneBitForBit) {
  for (const int ranks : {1, 2}) {
    Config whole = tiny_.config("whole" + std::to_string(ranks));
    whole.train.dtype = "bf16";
    run(ranks, whole);
    Config resumed = whole;
    resumed.run.folder = tiny_.folder().file("resumed" + std::to_string(ranks));
    interrupt(whole, 3, resumed);
    EXPECT_EQ(run(ranks, resumed).first_step, 3);
    expect_same_bits(whole, resumed);
  }
}

TEST_F(Trainer, AnotherTypeIsABranch) {
  Config whole = tiny_.config("whole");
  whole.train.steps = 3;
  run(1, whole);
  Config half = whole;
  half.train.steps = 6;
  half.train.dtype = "bf16";
  EXPECT_THAT(error_text([&] { run(1, half); }), HasSubstr("train.dtype = 'bf16' differs from 'f32'"));
  half.run.folder = tiny_.config("half").run.folder;
  const Outcome outcome = run(1, half, ResumePolicy::parse(checkpoint_of(whole, 3).string()));
  EXPECT_EQ(outcome.first_step, 3);
  EXPECT_EQ(outcome.last_step, 6);
}

TEST_F(Trainer, AnyNumberOfRanksGoesOn) {
  Config whole = tiny_.config("whole");
  whole.train.micro_batches = 2;
  run(2, whole);
  struct Continuation {
    int ranks, context, micro_batches;
  };
  for (const auto& [ranks, context, micro_batches] :
       {Continuation{1, 0, 2}, Continuation{3, 0, 2}, Continuation{2, 1, 1}, Continuation{4, 2, 1}}) {
    SCOPED_TRACE(ranks);
    Config resumed = whole;
    resumed.run.folder = tiny_.folder().file(std::to_string(ranks) + std::to_string(context));
    resumed.parallel.context = context;
    resumed.train.micro_batches = micro_batches;
    interrupt(whole, 3, resumed);
    run(ranks, resumed);
    expect_same_but_for_rounding(whole, resumed);
  }
}

TEST_F(Trainer, ASignalSavesAndStops) {
  Config config = tiny_.config("run");
  config.train.steps = 300;
  config.checkpoint.every = 0;
  std::thread killer([&] {
    const fs::path metrics = fs::path(config.run.folder) / "metrics.jsonl";
    for (int i = 0; i < 20000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (fs::exists(metrics) && fs::file_size(metrics) > 0) break;
    }
    ::kill(::getpid(), SIGUSR1);
  });
  const Outcome outcome = run(2, config);
  killer.join();
  EXPECT_EQ(outcome.stop_signal, SIGUSR1);
  EXPECT_FALSE(outcome.last_save_failed);
  ASSERT_LT(outcome.last_step, 300);
  EXPECT_EQ(outcome.last_checkpoint, checkpoint_of(config, outcome.last_step).string());
  EXPECT_EQ(losses(config).size(), static_cast<std::size_t>(outcome.last_step));
  EXPECT_EQ(state_of(config, outcome.last_checkpoint).progress.step, outcome.last_step);
}

// Token 7 stands in one sequence alone, and its embedding is no number.
TEST_F(Trainer, ALossThatIsNotFiniteNamesStepAndRankAndChangesNothing) {
  Config config = tiny_.with_a_rare_token(tiny_.config("run"));
  config.train.steps = 3;
  config.train.warmup_steps = 2;
  run(2, config);

  edit_checkpoint(config, 3,
                  [&](const model::ParameterMap& map, const Buffers& buffers, checkpoint::Progress&) {
                    const float none = std::nanf("");
                    buffers.parameters.write(map.embedding() + 7 * config.model.hidden, {&none, 1});
                  });
  const auto file = checkpoint_of(config, 3);
  const std::string before = test::contents(file);

  config.train.steps = 6;
  config.checkpoint.every = 1;
  EXPECT_THAT(error_text([&] { run(2, config); }),
              mentions("the loss of optimizer step 4 is not finite", "rank 1", "train.lr",
                       "The parameters were not changed"));
  EXPECT_EQ(test::contents(file), before);
  EXPECT_FALSE(fs::exists(checkpoint_of(config, 4)));
  EXPECT_EQ(losses(config).size(), 3u);
}

// Every token is a document: none has a next one to predict.
TEST_F(Trainer, StepsWithoutTargetsAreTold) {
  Config config = tiny_.config("run");
  std::vector<std::int32_t> tokens(400, 7);
  std::vector<std::int64_t> documents(tokens.size());
  std::iota(documents.begin(), documents.end(), 0);
  data::write_shard(tiny_.file("single.h5"), *data::make_byte_tokenizer(), tokens, documents);
  config.data.shards = {tiny_.file("single.h5").string()};
  config.train.steps = 3;
  run(2, config);
  EXPECT_EQ(losses(config), std::vector<double>(3, 0.0));
  EXPECT_EQ(metric(config, "targets"), std::vector<double>(3, 0.0));
  EXPECT_THAT(log_of(config), mentions("optimizer step 1: none of its", "has a target",
                                       "3 of 3 optimizer steps had no targets"));
  Config usual = tiny_.config("usual");
  usual.train.steps = 3;
  run(2, usual);
  EXPECT_THAT(log_of(usual), Not(HasSubstr("target")));
}

TEST_F(Trainer, WrongCombinationsNameTheKeys) {
  const auto message = [&](int ranks, auto change) {
    Config config = tiny_.config("run");
    change(config);
    return error_text([&] { run(ranks, config); });
  };
  EXPECT_THAT(message(3, [](Config& c) { c.parallel.context = 2; }),
              mentions("parallel.context = 2", "3 ranks"));
  EXPECT_THAT(message(1, [](Config& c) { c.parallel.context = 4; }), HasSubstr("parallel.context = 4"));
  EXPECT_THAT(message(1, [](Config& c) { c.data.sequence_length = 1 << 20; }),
              HasSubstr("longer than the data"));
  EXPECT_THAT(message(1, [](Config& c) { c.data.shards.clear(); }), HasSubstr("data.shards is empty"));
  EXPECT_THAT(message(1, [](Config& c) { c.data.shards = {"/none/such"}; }), HasSubstr("/none/such"));
  EXPECT_THAT(message(1, [](Config& c) { c.model.vocabulary = 100; }),
              mentions("model.vocabulary = 100", "257"));
  EXPECT_THAT(message(1, [](Config& c) { c.attention.schedule = "circle"; }),
              mentions("attention.schedule", "circle"));
  EXPECT_THAT(message(1, [](Config& c) { c.attention.kernel = "magic"; }),
              mentions("attention.kernel = 'magic'", "portable"));
  // The kernel of the other side of a PCI bus, and tensor cores without 16 bits.
  if (annulus::test::on_host) {
    EXPECT_THAT(message(1, [](Config& c) { c.attention.kernel = "tensor_cores"; }),
                mentions("attention.kernel = 'tensor_cores' is for GPUs", "run.device"));
  } else {
    EXPECT_THAT(message(1, [](Config& c) { c.attention.kernel = "tensor_cores"; }),
                mentions("attention.kernel = 'tensor_cores'", "train.dtype = 'bf16'"));
  }
  const char* foreign = annulus::test::on_host ? "mma" : "host_simd";
  EXPECT_THAT(message(1, [&](Config& c) { c.attention.kernel = foreign; }),
              mentions(std::string("attention.kernel = '") + foreign, "run.device"));
  if (!has_device) {
    EXPECT_THAT(message(1, [](Config& c) { c.run.device = "gpu"; }), HasSubstr("run.device = 'gpu'"));
  }
  EXPECT_THAT(message(1, [](Config& c) { c.attention.mask = "window:3"; }), HasSubstr("attention.mask"));
  EXPECT_THAT(message(1, [](Config& c) { c.attention.mask = "full"; }), HasSubstr("attention.mask = 'full'"));
  EXPECT_THAT(message(1, [](Config& c) { c.attention.mask = "window:8,1"; }),
              mentions("attention.mask = 'window:8,1'", "causal+window:8,1"));
  EXPECT_FALSE(fs::exists(tiny_.config("run").run.folder));  // nothing was begun
}

}  // namespace
}  // namespace annulus::train
