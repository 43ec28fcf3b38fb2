// memory.recompute, memory.offload_activations and memory.chunk_rows: what a run computes again, offloads or
// computes in parts against one that keeps everything. In the programs for CPUs the host's memory stands for
// the device's.

#include <fmt/ranges.h>

#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

using testing::DoubleNear;

class Activations : public TinyTest {
 protected:
  using Keys = std::vector<std::string>;

  static void run(int ranks, const Config& config) { test::run(ranks, config, {}, offloading()); }

  Config config(const std::string& name, const Keys& sets = {}) const {
    return with(tiny_.config(name, {"model.layers=4", "train.steps=3", "train.micro_batches=2",
                                    "train.sequences_per_pass=2"}),
                sets);
  }
  /// The run with other values of keys of memory.
  static Config with_memory(const Config& config, Keys keys) {
    for (std::string& key : keys) key = "memory." + key;
    return copy(config, fmt::format("{}", fmt::join(keys, " ")), keys);
  }

  static constexpr const char* mixed = "recompute=['none', 'full', 'selective', 'sequence-selective']";
};

TEST_F(Activations, HaveTheSameBitsComputedAgainAndOffloaded) {
  for (const int zero : {0, 3}) {
    const Config kept = config(fmt::format("kept {}", zero), {fmt::format("parallel.zero={}", zero)});
    run(2, kept);
    for (const Keys& keys :
         {Keys{"recompute=full"},
          {"recompute=selective", "offload_activations=1"},
          {"recompute=none", "offload_activations=0.5"},
          {"recompute=sequence-selective", "offload_activations=0.75"},
          {"recompute=selective", "layers_without_recompute=1"},
          {"recompute=sequence-selective", "offload_activations=1", "layers_without_recompute=2"},
          {mixed, "offload_activations=1"}})
      expect_same_run(kept, 2, with_memory(kept, keys), offloading());
  }
}

// The LM head computes as many rows at once as a rank has, and fewer; the gradient of its weights is a sum
// over tiles.
TEST_F(Activations, AgreeInChunks) {
  const Config kept = config("kept");
  run(2, kept);
  for (const Keys& keys : {Keys{"recompute=none", "chunk_rows=7"},
                           {"recompute=selective", "offload_activations=1", "chunk_rows=16"},
                           {"recompute=full", "chunk_rows=1"},
                           {"lm_head_rows=1"},
                           {"lm_head_rows=7"}}) {
    const Config changed = with_memory(kept, keys);
    SCOPED_TRACE(changed.run.folder);
    run(2, changed);
    EXPECT_LT(difference(kept, changed), 2e-6);
  }
  expect_same_run(kept, 2, with_memory(kept, {"lm_head_rows=100000"}), offloading());  // one tile, as without
}

TEST_F(Activations, AndTransfersHaveTheSameBitsWithoutOverlap) {
  const Config kept = config("kept", {"attention.schedule=burst"});
  run(3, kept);
  expect_same_run(kept, 3, copy(kept, "no overlap", {"attention.overlap=false"}));
}

// Attention's forward pass, in pairs of queries and keys: sequence-selective computes those of the first half
// of the positions again, a quarter of a causal mask.
TEST_F(Activations, MetricsCountForwardAttention) {
  const Config kept = config("kept");
  const double half = 25.0 * 26 / (50.0 * 51);
  for (const auto& [recompute, expected] : {std::pair("recompute=none", 1.0),
                                            {"recompute=full", 2},
                                            {"recompute=selective", 1},
                                            {"recompute=sequence-selective", 1 + half},
                                            {mixed, 1.25 + half / 4}}) {
    const Config changed = with_memory(kept, {recompute});
    SCOPED_TRACE(changed.run.folder);
    run(2, changed);
    EXPECT_THAT(metric(changed, "forward_attention"), Each(DoubleNear(expected, 1e-12)));
  }
}

TEST_F(Activations, ThatDoNotFitNameThePolicyThatDoes) {
  const Config config = this->config("large", {"data.sequence_length=2000"});
  const auto message = [&](std::int64_t free) {
    Hooks mine = offloading();
    (on_host ? mine.host_memory : mine.device_memory) = free;
    return run_error(1, config, {}, mine);
  };
  const std::string none = message(1'000'000);
  EXPECT_THAT(none, AllOf(HasSubstr("the run does not fit"), Not(HasSubstr("which fit"))));
  const std::int64_t of_cublas = on_host ? 0 : std::int64_t{32} << 20;  // workspace
  EXPECT_THAT(message(15'000'000 + of_cublas), HasSubstr("memory.recompute"));
}

#ifndef ANNULUS_TEST_ON_DEVICE
TEST_F(Activations, OffloadNeedsADevice) {
  EXPECT_THAT(run_error(1, config("cpu", {"run.device=cpu", "memory.offload_activations=0.5"})),
              mentions("memory.offload_activations", "run.device"));
}
#endif

TEST_F(Activations, HostMemoryThatCannotSufficeIsNamed) {
  Hooks mine = offloading();
  mine.host_memory = 1'000'000;
  EXPECT_THAT(
      run_error(1, config("host", {"data.sequence_length=1000", "memory.offload_activations=1"}), {}, mine),
      mentions("memory.offload_activations", "(activations "));
}

}  // namespace
}  // namespace annulus::training::test
