// Training in the steady state allocates nothing inside a step.
#include <annulus/training/data/packer.hpp>

#include "support/allocations.hpp"
#include "training/data/shard.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

TEST(Allocations, NoneInASteadyStep) {
  constexpr int warm_up = 2;  // steps
  const TinyRun tiny;
  for (const std::string dtype : {"f32", "bf16"}) {
    for (const int ranks : {1, 2}) {
      Config config = tiny.config(dtype + std::to_string(ranks));
      config.attention.mask = "causal";  // documents bring new plans
      config.train.dtype = dtype;
      config.train.micro_batches = 2 * ranks;
      config.train.sequences_per_pass = ranks;
      config.checkpoint.every = 0;  // at the end, which does not count
      annulus::test::Allocations allocations;
      Hooks hooks;
      hooks.updated = [&](std::int64_t step, const Buffers&) {
        if (step <= warm_up) allocations.clear();
        if (step < config.train.steps) return;
        EXPECT_THAT(allocations.labels(), testing::IsEmpty()) << dtype << " on " << ranks << " ranks";
      };
      EXPECT_EQ(run(ranks, config, {}, hooks).last_step, config.train.steps);
    }
  }
}

// Cuts for other documents in each step change no array.
TEST(Allocations, NoneInASteadyStepOnBalancedCuts) {
  constexpr int warm_up = 2;  // steps
  const TinyRun tiny;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> documents;
  while (tokens.size() < 6000) {
    documents.push_back(std::ssize(tokens));
    tokens.insert(tokens.end(), 1 + documents.size() * 7919 % 90,
                  static_cast<std::int32_t>('a' + tokens.size() % 20));
  }
  data::write_shard(tiny.file("documents.h5"), *data::make_byte_tokenizer(), tokens, documents);
  for (const std::string schedule : {"all-gather", "ring", "burst"}) {
    Config config = tiny.config(schedule);
    config.data.shards = {tiny.file("documents.h5").string()};
    config.data.sequence_length = 200;
    config.attention.mask = "documents";
    config.attention.layout = "balanced";
    config.attention.schedule = schedule;
    config.train.micro_batches = 4;
    config.train.sequences_per_pass = 2;
    config.checkpoint.every = 0;
    annulus::test::Allocations allocations;
    Hooks hooks;
    hooks.updated = [&](std::int64_t step, const Buffers&) {
      if (step <= warm_up) allocations.clear();
      if (step < config.train.steps) return;
      // Pinned buffers of messages that pass through the host come as sizes come (comm::Staging).
      EXPECT_THAT(allocations.labels(), testing::Each(testing::StartsWith("annulus::comm::staging:")))
          << schedule;
    };
    EXPECT_EQ(run(3, config, {}, hooks).last_step, config.train.steps);
  }
}

}  // namespace
}  // namespace annulus::training::test
