// memory.offload_optimizer: training with master weights and moments in pinned memory of the host against
// training with them on the device. In the programs for CPUs the host's memory stands for the device's.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include <annulus/io/hdf5.hpp>
#include <annulus/model/parameters.hpp>

#include "support/error_text.hpp"
#include "support/exec.hpp"
#include "train/compare_runs.hpp"
#include "train/ranks.hpp"
#include "train/tiny_run.hpp"

namespace annulus::train {
namespace {

namespace fs = std::filesystem;
using annulus::train::test::expect_same_bits;
using annulus::train::test::log_of;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

class Offload : public testing::Test {
 protected:
  static Hooks hooks() {
    Hooks hooks;
    hooks.offload_on_cpu = true;
    return hooks;
  }
  static Outcome run(int ranks, const Config& config) {
    return annulus::train::test::run(ranks, config, {}, hooks());
  }
  /// Units are of several blocks of a Partition, so that every rank holds something.
  Config config(int zero, bool offload, const std::string& name = {}) const {
    Config config = tiny_.config(fmt::format("{} {} {}", name, zero, offload ? "host" : "device"));
    config.model.layers = 2;
    config.model.hidden = 96;
    config.model.ffn = 256;
    config.parallel.zero = zero;
    config.memory.offload_optimizer = offload;
    config.train.steps = 4;
    config.train.schedule_steps = 4;
    config.train.clip_norm = 0.1;
    config.train.check_replicas = 1;
    config.checkpoint.every = 2;
    return config;
  }

  const annulus::train::test::TinyRun tiny_;
};

TEST_F(Offload, HasTheSameBitsUnderEveryStageAndType) {
  for (const char* dtype : {"f32", "bf16"})
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, zero {}", dtype, zero));
      Config on_device = config(zero, false, dtype), on_host = config(zero, true, dtype);
      for (Config* config : {&on_device, &on_host}) {
        config->train.dtype = dtype;
        config->train.micro_batches = 2;
        run(2, *config);
      }
      expect_same_bits(on_device, on_host);
      EXPECT_THAT(log_of(on_host), HasSubstr("memory.offload_optimizer: master weights and moments"));
      EXPECT_THAT(log_of(on_device), Not(HasSubstr("offload")));
    }
}

TEST_F(Offload, HasTheSameBitsOnOneRankAndWithCopiesInGroups) {
  const Config alone = config(0, false, "alone"), alone_on_host = config(0, true, "alone");
  run(1, alone);
  run(1, alone_on_host);
  expect_same_bits(alone, alone_on_host);
  Config groups = config(3, false, "groups"), groups_on_host = config(3, true, "groups");
  for (Config* config : {&groups, &groups_on_host}) {
    config->parallel.shard = 2;
    run(4, *config);
  }
  expect_same_bits(groups, groups_on_host);
}

TEST_F(Offload, RunsGoOnWithAndWithoutIt) {
  const Config whole = config(0, false, "whole");
  run(2, whole);
  struct {
    int zero;
    bool offload;
  } const changes[][2] = {{{0, true}, {0, false}}, {{0, false}, {3, true}}, {{3, true}, {1, true}}};
  for (const auto& [before, after] : changes) {
    SCOPED_TRACE(fmt::format("from zero {}{} to {}{}", before.zero, before.offload ? ", offloaded" : "",
                             after.zero, after.offload ? ", offloaded" : ""));
    Config resumed = config(before.zero, before.offload, fmt::format("to {}", after.zero));
    resumed.train.steps = 2;
    run(2, resumed);
    resumed.train.steps = 4;
    resumed.parallel.zero = after.zero;
    resumed.memory.offload_optimizer = after.offload;
    EXPECT_EQ(run(2, resumed).first_step, 2);
    expect_same_bits(whole, resumed);
  }
}

TEST_F(Offload, DumpsHoldTheSameTensors) {
  const auto dumped = [&](int zero, bool offload) {
    const fs::path file = tiny_.file(fmt::format("{} {}.h5", zero, offload));
    comm::run_loopback(Topology::uniform(2, 2), [&](comm::Communicator& world) {
      train(world, config(zero, offload, "dump"), {}, {file, 3}, hooks());
    });
    return io::File::open(file);
  };
  const io::File expected = dumped(0, false);
  const model::ParameterMap map(config(0, false).model);
  for (const int zero : {0, 3}) {
    const io::File found = dumped(zero, true);
    for (const char* group : {"parameters", "gradients"})
      for (const model::Parameter& p : map.all()) {
        const std::string name = fmt::format("{}/{}", group, p.name);
        EXPECT_EQ(found.read<float>(name), expected.read<float>(name)) << name << ", zero " << zero;
      }
  }
}

// A bit that the host's memory has changed.
TEST_F(Offload, AChangedBitOfACopyIsFound) {
  for (const int zero : {0, 3}) {
    Config config = this->config(zero, true, "bit");
    if (zero == 3) config.parallel.shard = 2;
    const auto texts = annulus::train::test::messages(4, [&](int rank) {
      Hooks mine = hooks();
      if (rank == 3)
        mine.updated = [](std::int64_t step, const Buffers& held) {
          const float value = 1;
          if (step == 2) held.second_moment.write(7, {&value, 1});
        };
      return std::pair(config, mine);
    });
    EXPECT_THAT(texts, Each(mentions("after optimizer step 2 not all ranks hold the same",
                                     "the second moment of embedding", "rank 3")));
  }
}

TEST_F(Offload, HostMemoryThatCannotSufficeIsNamedAtTheStart) {
  const Config config = this->config(1, true, "large");
  const auto message = [&](std::int64_t available) {
    Hooks mine = hooks();
    mine.host_memory = available;
    return error_text([&] { annulus::train::test::run(2, config, {}, mine); });
  };
  EXPECT_THAT(message(1'000'000), mentions("memory.offload_optimizer = true keeps ", "for the 2 ranks of",
                                           "1.00 MB are available", "memory.offload_optimizer = false"));
  EXPECT_FALSE(fs::exists(config.run.folder));  // nothing was begun
  EXPECT_EQ(message(1'000'000'000), "no error");
}

#ifndef ANNULUS_TEST_ON_DEVICE
TEST_F(Offload, NeedsADevice) {
  for (const char* device : {"cpu", "auto"}) {
    Config config = this->config(0, true);
    config.run.device = device;
    if (has_device && config.run.device == "auto") continue;
    EXPECT_THAT(error_text([&] { annulus::train::test::run(2, config); }),
                mentions("memory.offload_optimizer = true moves the optimizer's state out of a GPU's memory",
                         fmt::format("(run.device = '{}')", device), "set memory.offload_optimizer = false"));
    EXPECT_FALSE(fs::exists(config.run.folder));
  }
}
#endif

}  // namespace
}  // namespace annulus::train
