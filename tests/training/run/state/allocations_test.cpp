// Training in the steady state allocates nothing inside a step.
#include <memory>
#include <utility>

#include "attention/comm/staged/state.hpp"
#include "support/allocations.hpp"
#include "support/pass_through.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

/// Expects nothing to be allocated in the steps behind the first two; `train_on` runs ranks with these hooks.
template <class TrainOn>
void expect_no_allocations(const Config& config, const TrainOn& train_on) {
  SCOPED_TRACE(config.run.folder);
  annulus::test::Allocations allocations;
  Hooks hooks;
  hooks.updated = [&](std::int64_t step, const Buffers&) {
    if (step <= 2) allocations.clear();
    if (step < config.train.steps) return;
    EXPECT_THAT(allocations.labels(), testing::IsEmpty());
  };
  train_on(hooks);
}

/// Exchanges of the host's memory pass through pinned memory, as those of a device's do.
class StagesHostMemory final : public annulus::test::PassThrough, public comm::StagesExchanges {
 public:
  StagesHostMemory(comm::Communicator& inner, std::shared_ptr<comm::Staging> staging)
      : PassThrough(inner), inner_(inner), staging_(std::move(staging)) {}
  StagesHostMemory(std::unique_ptr<comm::Communicator> inner, std::shared_ptr<comm::Staging> staging)
      : PassThrough(*inner), owned_(std::move(inner)), inner_(*owned_), staging_(std::move(staging)) {}

  comm::Request exchange(const Queue& queue, std::span<const comm::Send> sends,
                         std::span<const comm::Receive> receives, int channel) override {
    auto state = std::make_unique<comm::StagedState>(staging_, staging_->exchanges, inner_, queue);
    state->start(sends, receives, channel);
    return comm::Request(std::move(state));
  }
  void progress() override {
    staging_->pump();
    inner_.progress();
  }
  std::unique_ptr<comm::Communicator> split(int color, int key) override {
    staging_->flush();
    return std::make_unique<StagesHostMemory>(inner_.split(color, key), staging_);
  }
  std::unique_ptr<comm::Communicator> for_another_thread() override { return inner_.for_another_thread(); }
  void reserve(const comm::ExchangeLoad& load) override { staging_->reserve(load); }

 private:
  std::unique_ptr<comm::Communicator> owned_;
  comm::Communicator& inner_;
  std::shared_ptr<comm::Staging> staging_;
};

class Allocations : public TinyTest {};

TEST_F(Allocations, NoneInASteadyStep) {
  for (const char* dtype : {"f32", "bf16"})
    for (const int ranks : {1, 2}) {
      // Documents would bring new plans. The checkpoint at the end does not count.
      const Config config =
          tiny_.config(fmt::format("{} {}", dtype, ranks),
                       {"attention.mask=causal", fmt::format("train.dtype={}", dtype),
                        fmt::format("train.micro_batches={}", 2 * ranks),
                        fmt::format("train.sequences_per_pass={}", ranks), "checkpoint.every=0"});
      expect_no_allocations(config, [&](const Hooks& hooks) {
        EXPECT_EQ(run(ranks, config, {}, hooks).last_step, config.train.steps);
      });
    }
}

// Cuts for other documents in each step change no array: long ones in the first two steps, and then more
// documents and runs of rows than arrays begin with, in messages of many sizes.
TEST_F(Allocations, NoneInASteadyStepOnBalancedCuts) {
  constexpr std::int64_t tokens = 1600, sequences = 16;
  std::vector<std::int64_t> documents(8, tokens);
  for (std::int64_t left = (sequences - 8) * tokens + 1, i = 0; left > 0; left -= documents.back(), ++i) {
    const std::int64_t sequence = i % 3;
    documents.push_back(
        std::min(left, i < 3 * tokens ? 1 + i % 2 : 1 + (sequence == 0 ? i * 7919 % 700 : i * 31 % 40)));
  }
  const std::string shard = tiny_.shard("documents.h5", documents);
  for (const std::string schedule : {"all-gather", "ring", "burst"}) {
    const Config config =
        tiny_.config(schedule, {"data.shards=" + shard, fmt::format("data.sequence_length={}", tokens),
                                "data.shuffle=false", "attention.mask=documents", "attention.layout=balanced",
                                "attention.schedule=" + schedule, "train.micro_batches=4",
                                "train.sequences_per_pass=2", "train.steps=4", "checkpoint.every=0"});
    expect_no_allocations(config, [&](const Hooks& hooks) {
      comm::run_loopback(Topology::uniform(3, 3), [&](comm::Communicator& world) {
        const auto staging = std::make_shared<comm::Staging>();
        StagesHostMemory through_host(world, staging);
        EXPECT_EQ(train(on_host ? through_host : world, config, {}, {}, hooks).last_step, config.train.steps);
      });
    });
  }
}

}  // namespace
}  // namespace annulus::training::test
