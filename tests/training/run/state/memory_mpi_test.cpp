// The predicted peak of memory against what ranks, which are processes, hold at most.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/attention/comm/mpi.hpp>

#include "training/io/atomic.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

struct Case {
  int zero;
  const char *recompute, *schedule, *layout;
  std::int64_t chunk_rows;
  int sequences_per_pass;
  std::vector<std::string> more = {};  // as --set takes them
};

// Every pair of a stage of ZeRO and a policy, with all else in turns.
std::vector<Case> cases_on(const std::string& shards) {
  const auto validation = [&](int length, std::vector<std::string> more = {}) {
    more.insert(more.end(), {fmt::format("data.validation_length={}", length), "data.validation=" + shards,
                             "train.validate_every=1", "train.validate_sequences=2"});
    return more;
  };
  const std::string documents = "attention.mask=documents",
                    sparse = "attention.sparsity=", kinds = "model.pattern=",
                    columns = sparse + "vertical-slash:verticals=40,slashes=3,window=16",
                    offload = "memory.offload_optimizer=true", native = "parallel.sums=native";
  return {
      {0, "none", "ring", "zigzag", 0, 1},
      {0, "selective", "burst", "striped", 64, 2},
      {0, "sequence-selective", "ulysses", "contiguous", 0, 2},
      {0, "full", "all-gather", "zigzag", 64, 1},
      {1, "none", "burst", "zigzag", 64, 2},
      {1, "selective", "ring", "contiguous", 0, 1},
      {1, "sequence-selective", "ring", "striped", 64, 1},
      {1, "full", "ulysses", "zigzag", 0, 2},
      {2, "none", "ulysses", "zigzag", 0, 1},
      {2, "selective", "all-gather", "zigzag", 64, 2},
      {2, "sequence-selective", "burst", "zigzag", 0, 1},
      {2, "full", "ring", "striped", 64, 2},
      {3, "none", "all-gather", "contiguous", 64, 1},
      {3, "selective", "burst", "zigzag", 0, 2},
      {3, "sequence-selective", "ring", "zigzag", 64, 2},
      {3, "full", "burst", "striped", 0, 1},
      {2, "selective", "ring", "zigzag", 0, 1, {native}},
      {2, "none", "ring", "block-striped:64", 0, 1, {columns}},
      {2, "selective", "burst", "zigzag", 0, 2, {"memory.layers_without_recompute=1"}},
      {3, "full", "burst", "zigzag", 64, 2, {"memory.layers_without_recompute=2"}},
      {0, "selective", "ring", "zigzag", 0, 1, {offload, "memory.offload_activations=1"}},
      {1, "none", "burst", "zigzag", 64, 2, {native, offload, "memory.offload_activations=0.5"}},
      {2, "full", "ring", "striped", 0, 1, {offload}},
      {3, "selective", "ring", "zigzag", 64, 2, {offload, "memory.offload_activations=1"}},
      // Validation, whose activations do not fit, or do, into the memory of training.
      {0, "full", "ring", "zigzag", 0, 1, validation(5000)},
      {3, "none", "burst", "striped", 64, 2, validation(2000)},
      {2, "selective", "ring", "block-striped:64", 0, 1, validation(3000, {columns})},
      {0, "selective", "ring", "zigzag", 0, 2, {sparse + "xattention:block=64,stride=4,threshold=0.5"}},
      {1, "none", "ring", "zigzag", 0, 2, {sparse + "moba:block=64,top=3"}},
      {2,
       "sequence-selective",
       "burst",
       "zigzag",
       0,
       1,
       // The planner counts fp32 queries, which not every kernel makes: with more compressed keys 5 % of this
       // model.
       {sparse + "infllm-v2:block=64,top=2,sinks=1,window=64,stride=64"}},
      // Layers of several kinds.
      {0, "none", "ring", "contiguous", 0, 1, {kinds + "2*window:30,0, causal"}},
      {3, "sequence-selective", "burst", "zigzag", 64, 2,
       validation(700, {kinds + "causal rope=none, window:50,0 theta=100, window:7,0"})},
      // Sequences that are cut for their documents.
      {0, "none", "all-gather", "balanced", 0, 2, {documents}},
      {3, "selective", "ring", "balanced", 64, 1,
       validation(1700, {documents, kinds + "causal, window:50,0"})},
      {1, "full", "burst", "zigzag", 0, 2, {documents}},
      {2, "none", "ring", "block-striped:64", 0, 1,
       validation(700, {columns, kinds + "2*window:30,0, causal"})},
      // Other blocks: of gpt-oss, of OLMo, and of Gemma.
      {2,
       "selective",
       "ring",
       "zigzag",
       64,
       1,
       {kinds + "window:30,0 sinks, causal sinks", "model.qkv_bias=true", "model.out_bias=true"}},
      {1, "none", "ring", "zigzag", 64, 2, {"model.norms=behind", "model.qk_norm=heads"}},
      {3,
       "selective",
       "burst",
       "zigzag",
       0,
       1,
       {kinds + "2*window:30,0 fraction=0.5, causal", "model.norms=both", "model.gains_from_one=true",
        "model.qk_norm=head", "model.activation=gelu_tanh", "model.scaled_embedding=true"}},
      // Whole matrices.
      {0, "full", "ring", "zigzag", 64, 1, {"train.optimizer=muon"}},
      {3, "full", "ring", "zigzag", 64, 1, {"train.optimizer=muon"}},
      {2,
       "selective",
       "burst",
       "block-striped:64",
       0,
       1,
       {sparse + "vertical-slash:verticals=160,slashes=3,window=16", "sparsity.keep_columns=true"}},
      // Sets of data, whose losses are told apart.
      {1,
       "selective",
       "ring",
       "zigzag",
       0,
       2,
       {"data.shards=[]", fmt::format("data.sets=[{{name='a', shards='{0}'}}, {{name='b', shards='{0}'}}, "
                                      "{{name='c', shards='{0}'}}]",
                                      shards)}},
      // Last: a thread keeps what its products in bf16 took.
      {3, "selective", "ring", "zigzag", 64, 1, {"train.dtype=bf16"}},
      {0, "none", "burst", "striped", 0, 1, {"train.dtype=bf16"}},
  };
}

Config config_of(const Case& of, const TinyRun& tiny, const std::string& name) {
  const Config config = tiny.config(
      name, {"model.layers=3", "model.hidden=128", "model.heads=4", "model.kv_heads=2", "model.head_dim=32",
             "model.ffn=344", "data.verify=false", "data.sequence_length=500",  // which ranks need not divide
             "train.steps=2", "train.warmup_steps=1", "train.micro_batches=2", "checkpoint.every=0",
             fmt::format("parallel.zero={}", of.zero), fmt::format("memory.recompute={}", of.recompute),
             fmt::format("attention.schedule={}", of.schedule), fmt::format("attention.layout={}", of.layout),
             fmt::format("memory.chunk_rows={}", of.chunk_rows),
             fmt::format("train.sequences_per_pass={}", of.sequences_per_pass)});
  return with(config, of.more);
}

std::int64_t total(const nlohmann::json& categories) {
  std::int64_t sum = 0;
  for (const auto& bytes : categories) sum += bytes.get<std::int64_t>();
  return sum;
}

TEST(PredictedMemory, IsWithinFivePercentOfTheMeasuredPeak) {
  const comm::MpiEnvironment mpi;
  const TinyRun tiny;
  int number = 0;
  for (const Case& of : cases_on(tiny.file("shards").string())) {
    const Config config = config_of(of, tiny, fmt::format("run {}", number++));
    SCOPED_TRACE(fmt::format("zero {}, {}, {}, {}, chunks of {}, {} at once, {}", of.zero, of.recompute,
                             of.schedule, of.layout, of.chunk_rows, of.sequences_per_pass,
                             fmt::join(of.more, ", ")));
    const auto world = mpi.world();  // a communicator keeps its workspace
    reset_memory_peaks();
    const Outcome outcome = train(*world, config, {}, {}, offloading());
    const MemoryUse& measured = outcome.memory.host;
    const prediction::PeakBytes& predicted = outcome.predicted_memory.host;
    EXPECT_NEAR(double(predicted.total), double(measured.total_peak), 0.05 * double(measured.total_peak));
    for (int i = 0; i < memory_category_count; ++i) {
      const auto slot = static_cast<std::size_t>(i);
      const auto category = static_cast<MemoryCategory>(i);
      // Initial values of offloaded masters pass through the workspace before the first step.
      if (config.memory.offload_optimizer && category == MemoryCategory::workspace) continue;
      // To the byte, but for what is guessed of selections, and for gradients that begin inside of a call.
      if (config.attention.sparsity.empty() &&
          (category == MemoryCategory::parameters || category == MemoryCategory::activations ||
           (category == MemoryCategory::gradients && of.zero < 2))) {
        EXPECT_EQ(predicted.categories[slot], measured.peak[slot]) << name_of(category);
      }
      EXPECT_NEAR(double(predicted.categories[slot]), double(measured.peak[slot]),
                  0.05 * double(measured.peak[slot]) + 0.01 * double(measured.total_peak))
          << name_of(category);
    }
    if (world->rank() != 0) continue;
    // Moment by moment.
    const nlohmann::json memory =
        nlohmann::json::parse(io::read_text(std::filesystem::path(config.run.folder) / "memory.json"));
    ASSERT_EQ(memory.at("predicted").size(), memory.at("measured").size());
    for (std::size_t i = 0; i < memory.at("measured").size(); ++i) {
      const nlohmann::json &expected = memory.at("predicted")[i], &seen = memory.at("measured")[i];
      EXPECT_EQ(expected.at("moment"), seen.at("moment"));
      // What comes and goes inside "sums of gradients" is gone when the run looks.
      if (of.zero == 1 && seen.at("moment") == "sums of gradients") continue;
      if (config.train.optimizer == "muon" && seen.at("moment") == "optimizer") continue;
      EXPECT_NEAR(double(total(expected.at("host"))), double(total(seen.at("host"))),
                  0.05 * double(total(seen.at("host"))))
          << seen.at("moment");
      // The run looks behind calls alone.
      for (const char* category : {"parameters", "data", "gradients", "activations"})
        if (config.attention.sparsity.empty() && (of.zero < 2 || category[0] == 'p' || category[0] == 'd')) {
          EXPECT_EQ(expected.at("host").at(category), seen.at("host").at(category))
              << category << " at " << seen.at("moment");
        }
    }
  }
}

}  // namespace
}  // namespace annulus::training::test
