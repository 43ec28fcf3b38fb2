// Training in the steady state allocates nothing inside a step.
#include "support/allocations.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

/// EXPECTs of the labels of what ranks allocate in the steps behind the first two.
template <class Labels>
void expect_allocations(int ranks, const Config& config, const Labels& labels) {
  SCOPED_TRACE(config.run.folder);
  annulus::test::Allocations allocations;
  Hooks hooks;
  hooks.updated = [&](std::int64_t step, const Buffers&) {
    if (step <= 2) allocations.clear();
    if (step < config.train.steps) return;
    EXPECT_THAT(allocations.labels(), labels);
  };
  EXPECT_EQ(run(ranks, config, {}, hooks).last_step, config.train.steps);
}

class Allocations : public TinyTest {};

TEST_F(Allocations, NoneInASteadyStep) {
  for (const char* dtype : {"f32", "bf16"})
    for (const int ranks : {1, 2})
      // Documents would bring new plans. The checkpoint at the end does not count.
      expect_allocations(
          ranks,
          tiny_.config(fmt::format("{} {}", dtype, ranks),
                       {"attention.mask=causal", fmt::format("train.dtype={}", dtype),
                        fmt::format("train.micro_batches={}", 2 * ranks),
                        fmt::format("train.sequences_per_pass={}", ranks), "checkpoint.every=0"}),
          testing::IsEmpty());
}

// Cuts for other documents in each step change no array.
TEST_F(Allocations, NoneInASteadyStepOnBalancedCuts) {
  std::vector<std::int64_t> documents;
  for (std::int64_t i = 1; i <= 130; ++i) documents.push_back(1 + i * 7919 % 90);
  const std::string shard = tiny_.shard("documents.h5", documents);
  for (const std::string schedule : {"all-gather", "ring", "burst"})
    // Pinned buffers of messages that pass through the host come as sizes come (comm::Staging).
    expect_allocations(3,
                       tiny_.config(schedule, {"data.shards=" + shard, "data.sequence_length=200",
                                               "attention.mask=documents", "attention.layout=balanced",
                                               "attention.schedule=" + schedule, "train.micro_batches=4",
                                               "train.sequences_per_pass=2", "checkpoint.every=0"}),
                       Each(StartsWith("annulus::comm::staging:")));
}

}  // namespace
}  // namespace annulus::training::test
