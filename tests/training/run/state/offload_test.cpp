// memory.offload_optimizer: training with master weights and moments in pinned memory of the host against
// training with them on the device. In the programs for CPUs the host's memory stands for the device's.

#include "training/io/hdf5_files/hdf5.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

class Offload : public TinyTest {
 protected:
  static Outcome run(int ranks, const Config& config) { return test::run(ranks, config, {}, offloading()); }
  Config config(int zero, bool offload, const std::string& name,
                const std::vector<std::string>& sets = {}) const {
    return with(tiny_.wide(name + (offload ? " host" : " device"), zero,
                           {fmt::format("memory.offload_optimizer={}", offload), "train.steps=4",
                            "train.schedule_steps=4", "train.clip_norm=0.1", "train.check_replicas=1",
                            "checkpoint.every=2"}),
                sets);
  }
};

TEST_F(Offload, HasTheSameBitsUnderEveryStageAndType) {
  for (const char* dtype : {"f32", "bf16"})
    for (const int zero : {0, 1, 2, 3}) {
      const std::vector<std::string> sets = {fmt::format("train.dtype={}", dtype), "train.micro_batches=2"};
      const Config on_device = config(zero, false, dtype, sets), on_host = config(zero, true, dtype, sets);
      run(2, on_device);
      expect_same_run(on_device, 2, on_host, offloading());
      EXPECT_THAT(log_of(on_host), HasSubstr("memory.offload_optimizer: master weights and moments"));
      EXPECT_THAT(log_of(on_device), Not(HasSubstr("offload")));
    }
}

TEST_F(Offload, HasTheSameBitsOnOneRankAndWithCopiesInGroups) {
  const Config alone = config(0, false, "alone");
  run(1, alone);
  expect_same_run(alone, 1, config(0, true, "alone"), offloading());
  const Config groups = config(3, false, "groups", {"parallel.shard=2"});
  run(4, groups);
  expect_same_run(groups, 4, config(3, true, "groups", {"parallel.shard=2"}), offloading());
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
    const Config first =
        config(before.zero, before.offload, fmt::format("to {}", after.zero), {"train.steps=2"});
    run(2, first);
    const Config resumed = with(first, {"train.steps=4", fmt::format("parallel.zero={}", after.zero),
                                        fmt::format("memory.offload_optimizer={}", after.offload)});
    EXPECT_EQ(run(2, resumed).first_step, 2);
    expect_same_bits(whole, resumed);
  }
}

TEST_F(Offload, DumpsHoldTheSameTensors) {
  const auto dumped = [&](int zero, bool offload) {
    const fs::path file = tiny_.file(fmt::format("{} {}.h5", zero, offload));
    test::run(2, config(zero, offload, "dump"), {}, offloading(), {file, 3});
    return io::File::open(file);
  };
  const io::File expected = dumped(0, false);
  const model::ParameterMap map(config(0, false, "dump").model);
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
    const Config config =
        this->config(zero, true, "bit", {fmt::format("parallel.shard={}", zero == 3 ? 2 : 0)});
    const auto change = [](const Buffers& held) { held.second_moment.write(7, std::array{1.0f}); };
    EXPECT_THAT(messages_when_changed(4, config, {3}, 2, change, offloading()),
                Each(mentions("after optimizer step 2 not all ranks hold the same",
                              "the second moment of embedding", "rank 3")));
  }
}

TEST_F(Offload, HostMemoryThatCannotSufficeIsNamedAtTheStart) {
  const Config config = this->config(1, true, "large");
  const auto message = [&](std::int64_t available) {
    Hooks mine = offloading();
    mine.host_memory = available;
    return run_error(2, config, {}, mine);
  };
  EXPECT_THAT(message(1'000'000), mentions("memory.offload_optimizer = true", "2 ranks", "1.00 MB"));
  EXPECT_FALSE(fs::exists(config.run.folder));  // nothing was begun
  EXPECT_EQ(message(1'000'000'000), "no error");
}

#ifndef ANNULUS_TEST_ON_DEVICE
TEST_F(Offload, NeedsADevice) {
  for (const char* device : {"cpu", "auto"}) {
    const Config config = this->config(0, true, "", {fmt::format("run.device={}", device)});
    if (has_device && config.run.device == "auto") continue;
    EXPECT_THAT(run_error(2, config),
                mentions("memory.offload_optimizer", fmt::format("run.device = '{}'", device)));
    EXPECT_FALSE(fs::exists(config.run.folder));
  }
}
#endif

}  // namespace
}  // namespace annulus::training::test
