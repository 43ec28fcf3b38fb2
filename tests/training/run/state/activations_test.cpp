// memory.recompute, memory.offload_activations and memory.chunk_rows: what a run computes again, offloads or
// computes in parts against one that keeps everything. In the programs for CPUs the host's memory stands for
// the device's.

#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

using testing::DoubleNear;

class Activations : public TinyTest {
 protected:
  static void run(int ranks, const Config& config) { test::run(ranks, config, {}, offloading()); }

  Config config(const std::string& name, int zero) const {
    Config config = tiny_.config(name, {"model.layers=4"});
    config.parallel.zero = zero;
    config.train.steps = 3;
    config.train.micro_batches = config.train.sequences_per_pass = 2;
    return config;
  }
  struct Memory {
    std::vector<std::string> recompute;
    double offload;
    std::int64_t chunk_rows;
    int layers_without_recompute = 0;
  };
  static Config with(const Config& config, const Memory& memory) {
    std::string name;
    for (const std::string& policy : memory.recompute) name += policy + " ";
    Config changed = copy(config, fmt::format("{}{} {} {}", name, memory.offload, memory.chunk_rows,
                                              memory.layers_without_recompute));
    changed.memory.recompute = memory.recompute;
    changed.memory.layers_without_recompute = memory.layers_without_recompute;
    changed.memory.offload_activations = memory.offload;
    changed.memory.chunk_rows = memory.chunk_rows;
    return changed;
  }
};

TEST_F(Activations, HaveTheSameBitsComputedAgainAndOffloaded) {
  for (const int zero : {0, 3}) {
    const Config kept = config(fmt::format("kept {}", zero), zero);
    run(2, kept);
    for (const Memory& memory : {Memory{{"full"}, 0, 0},
                                 {{"selective"}, 1, 0},
                                 {{"none"}, 0.5, 0},
                                 {{"sequence-selective"}, 0.75, 0},
                                 {{"selective"}, 0, 0, 1},
                                 {{"sequence-selective"}, 1, 0, 2},
                                 {{"none", "full", "selective", "sequence-selective"}, 1, 0}})
      expect_same_run(kept, 2, with(kept, memory), offloading());
  }
}

TEST_F(Activations, AgreeInChunks) {
  const Config kept = config("kept", 0);
  run(2, kept);
  for (const Memory& memory : {Memory{{"none"}, 0, 7}, {{"selective"}, 1, 16}, {{"full"}, 0, 1}}) {
    const Config changed = with(kept, memory);
    SCOPED_TRACE(changed.run.folder);
    run(2, changed);
    EXPECT_LT(difference(kept, changed), 2e-6);
  }
}

// As many rows as a rank has, and fewer; the gradient of the weights is a sum over tiles.
TEST_F(Activations, OfTheLmHeadAgreeForAnyRowsAtOnce) {
  const Config kept = config("kept", 0);
  run(2, kept);
  for (const std::int64_t rows : {1, 7, 100000}) {
    Config changed = copy(kept, fmt::format("head {}", rows));
    changed.memory.lm_head_rows = rows;
    SCOPED_TRACE(changed.run.folder);
    run(2, changed);
    EXPECT_LT(difference(kept, changed), 2e-6);
    if (rows < 100000) continue;
    expect_same_bits(kept, changed);  // a tile holds all rows of this run anyhow
  }
}

TEST_F(Activations, AndTransfersHaveTheSameBitsWithoutOverlap) {
  Config kept = config("kept", 0);
  kept.attention.schedule = "burst";
  run(3, kept);
  Config changed = copy(kept, "no overlap");
  changed.attention.overlap = false;
  expect_same_run(kept, 3, changed);
}

// Attention's forward pass, in pairs of queries and keys: sequence-selective computes those of the first half
// of the positions again, a quarter of a causal mask.
TEST_F(Activations, MetricsCountForwardAttention) {
  const Config kept = config("kept", 0);
  const double half = 25.0 * 26 / (50.0 * 51);
  const struct {
    Memory memory;
    double expected;
  } cases[] = {{{{"none"}, 0, 0}, 1},
               {{{"full"}, 0, 0}, 2},
               {{{"selective"}, 0, 0}, 1},
               {{{"sequence-selective"}, 0, 0}, 1 + half},
               {{{"none", "full", "selective", "sequence-selective"}, 0, 0}, 1.25 + half / 4}};
  for (const auto& [memory, expected] : cases) {
    const Config changed = with(kept, memory);
    SCOPED_TRACE(changed.run.folder);
    run(2, changed);
    EXPECT_THAT(metric(changed, "forward_attention"), Each(DoubleNear(expected, 1e-12)));
  }
}

TEST_F(Activations, ThatDoNotFitNameThePolicyThatDoes) {
  Config config = this->config("large", 0);
  config.data.sequence_length = 2000;
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
  Config config = this->config("cpu", 0);
  config.run.device = "cpu";
  config.memory.offload_activations = 0.5;
  EXPECT_THAT(run_error(1, config), mentions("memory.offload_activations", "run.device"));
}
#endif

TEST_F(Activations, HostMemoryThatCannotSufficeIsNamed) {
  Config config = this->config("host", 0);
  config.data.sequence_length = 1000;
  config.memory.offload_activations = 1;
  Hooks mine = offloading();
  mine.host_memory = 1'000'000;
  EXPECT_THAT(run_error(1, config, {}, mine), mentions("memory.offload_activations", "(activations "));
}

}  // namespace
}  // namespace annulus::training::test
