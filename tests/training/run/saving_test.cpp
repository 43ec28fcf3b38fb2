// Checkpoints that every rank writes its part of while training goes on: what is saved is the state of its
// step, whatever disk and other ranks do meanwhile.

#include <atomic>
#include <thread>
#include <tuple>

#include "support/full_disk.hpp"
#include "training/checkpoint/states.hpp"
#include "training/io/atomic.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

/// Six optimizer steps, the third of which is saved while the others are made.
class SavingTest : public TinyTest {
 protected:
  fs::path part(const Config& config, std::int64_t step, int part, int parts) const {
    return checkpoint_of(config, step) / checkpoint::part_file(part, parts);
  }
  static auto checkpoints(const Config& config) {
    return checkpoint::test::names_in(fs::path(config.run.folder) / "checkpoints");
  }
  static void flip(const fs::path& file) {
    std::string bytes = io::read_text(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    io::write_text_atomically(file, bytes);
  }
};

TEST_F(SavingTest, GivesEveryRankItsPartOfTheModel) {
  for (const int zero : {0, 1, 3}) {
    for (const int shard : {0, 2}) {
      if (zero == 0 && shard > 0) continue;
      SCOPED_TRACE(fmt::format("zero {} shard {}", zero, shard));
      const Config config =
          tiny_.wide(fmt::format("run {}", shard), zero, {fmt::format("parallel.shard={}", shard)});
      run(4, config);
      const checkpoint::Checkpoint saved(checkpoint_of(config, 3));
      const auto& parts = saved.manifest().parts;
      ASSERT_EQ(parts.size(), 4u);
      const std::int64_t quarter = 3 * 4 * model::ParameterMap(config.model).size() / 4;
      // A shard is padded to blocks of 16384 elements, which the last ranks lack.
      for (const checkpoint::PartFile& part : parts)
        EXPECT_LT(part.bytes, quarter + 3 * 4 * 4 * 16384 + 20000) << part.file;
    }
  }
}

/// How a run saves does not change what it saves: in the background, from a copy or from what AdamW waits
/// for, and while the run waits.
TEST_F(SavingTest, OfAStepThatIsPastHoldsTheStateOfThatStep) {
  struct Case {
    int ranks, zero;
    bool offload;
  };
  for (const auto& [ranks, zero, offload] : {Case{1, 0, false}, Case{2, 0, false}, Case{3, 3, false},
                                             Case{2, 0, true}, Case{3, 1, true}, Case{2, 3, true}}) {
    SCOPED_TRACE(fmt::format("{} ranks, zero {}, offload {}", ranks, zero, offload));
    const Config background = tiny_.wide(
                     fmt::format("{} {}", ranks, offload), zero,
                     {fmt::format("memory.offload_optimizer={}", offload), "train.schedule_steps=6"}),
                 waiting = copy(background, "waits", {"train.steps=3"});
    Hooks hooks = offloading();
    run(ranks, waiting, {}, hooks);
    // A disk so slow that the next step meets the writer.
    std::atomic<int> blocks = 0;
    hooks.writing = [&](int) {
      ++blocks;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    run(ranks, background, {}, hooks);
    EXPECT_GT(blocks, 10 * ranks);
    expect_same_state(state_of(background, checkpoint_of(background, 3)),
                      state_of(waiting, checkpoint_of(waiting, 3)));
    // And to the end, as if nothing had been saved on the way.
    expect_same_when_resumed(background, ranks, copy(background, "resumed"), offloading());
  }
}

TEST_F(SavingTest, WaitsForASaveThatTheDiskHasNotFinishedAndSaysSo) {
  const Config config = tiny_.wide("run", 1, {"train.steps=4", "checkpoint.every=1"});
  Hooks hooks;
  hooks.writing = [](int rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
  };
  run(2, config, {}, hooks);
  EXPECT_THAT(log_of(config), testing::ContainsRegex("optimizer step . waited for that of step ."));
  for (const int step : {1, 2, 3, 4})
    EXPECT_NO_THROW(checkpoint::Checkpoint(checkpoint_of(config, step)).verify());
  const Config quick = copy(config, "quick");
  run(2, quick);
  for (const int step : {1, 2, 3, 4})
    expect_same_state(state_of(config, checkpoint_of(config, step)),
                      state_of(quick, checkpoint_of(quick, step)));
  // A save that ends while the next one begins is not the disk's fault.
  EXPECT_THAT(log_of(quick), Not(HasSubstr("keep up")));
}

TEST_F(SavingTest, ThatFailsInTheBackgroundOfAnyRankIsNamedAndCostsThatCheckpointAlone) {
  const Config config = tiny_.wide("run", 3, {"checkpoint.every=2"});
  Hooks hooks;
  hooks.writing = [blocks = std::make_shared<std::atomic<int>>(0)](int rank) {
    if (rank == 2 && blocks->fetch_add(1) == 5) fail("the disk is full");
  };
  const Outcome outcome = run(3, config, {}, hooks);
  EXPECT_EQ(outcome.last_step, 6);
  EXPECT_EQ(outcome.failed_saves, 1);
  EXPECT_FALSE(outcome.last_save_failed);
  EXPECT_THAT(log_of(config), mentions("optimizer step 2 was not saved", "the disk is full", "rank 2"));
  EXPECT_THAT(checkpoints(config), testing::ElementsAre("step-00000004", "step-00000006"));
}

TEST_F(SavingTest, OnADiskThatFillsInTheBackgroundKeepsTheOlderCheckpoint) {
  const model::ParameterMap map(tiny_.wide("", 0).model);
  // Room for one checkpoint and a half.
  annulus::test::SmallFileSystem disk(12 * map.size() * 3 / 2);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  const Config config =
      tiny_.wide("run", 1, {"run.folder=" + (disk.path() / "run").string(), "checkpoint.every=2"});
  const Outcome outcome = run(3, config);
  EXPECT_EQ(outcome.last_step, 6);
  EXPECT_EQ(outcome.failed_saves, 2);
  EXPECT_TRUE(outcome.last_save_failed);
  EXPECT_EQ(outcome.last_checkpoint, checkpoint_of(config, 2).string());
  EXPECT_THAT(log_of(config), mentions("the checkpoint of optimizer step 4 was not saved", "No space left"));
  EXPECT_THAT(checkpoints(config), testing::ElementsAre("step-00000002"));
  EXPECT_NO_THROW(checkpoint::Checkpoint(checkpoint_of(config, 2)).verify());
}

/// A signal in the middle of the fourth optimizer step, which takes longer than there is time: its AdamW
/// comes when the state of the third is saved.
TEST_F(SavingTest, BeforeAStepThatWouldNotEndInTimeSavesTheStateThatIsWhole) {
  for (const auto& [zero, offload, every] : {std::tuple(0, false, 0), std::tuple(3, false, 0),
                                             std::tuple(1, true, 100), std::tuple(3, false, 3)}) {
    SCOPED_TRACE(fmt::format("zero {} offload {} every {}", zero, offload, every));
    const Config config = tiny_.wide(fmt::format("run {} {}", offload, every), zero,
                                     {fmt::format("memory.offload_optimizer={}", offload),
                                      fmt::format("checkpoint.every={}", every), "run.stop_within=1"});
    const fs::path saved = checkpoint_of(config, 3) / checkpoint::manifest_file;
    Hooks hooks = offloading();
    std::atomic<bool> in_time = true;
    hooks.gated = [&](std::int64_t step, int rank) {
      if (step != 4) return;
      if (rank == 1) std::raise(SIGUSR1);
      const auto begin = std::chrono::steady_clock::now();
      while (!fs::exists(saved)) {
        if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(20)) {
          in_time = false;
          return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    };
    const Outcome outcome = run(3, config, {}, hooks);
    EXPECT_TRUE(in_time);
    EXPECT_EQ(outcome.stop_signal, SIGUSR1);
    EXPECT_EQ(outcome.last_step, 4) << "it ended after all";
    EXPECT_THAT(log_of(config), HasSubstr("saved the state after optimizer step 3, as the next one"));
    const Config waiting = copy(config, "waits", {"train.schedule_steps=6", "train.steps=3"});
    run(3, waiting, {}, offloading());
    expect_same_state(state_of(config, checkpoint_of(config, 3)),
                      state_of(waiting, checkpoint_of(waiting, 3)));
    EXPECT_THAT(checkpoints(config), testing::ElementsAre("step-00000003", "step-00000004"));
  }
}

/// Rank 1 has passed its gate before it hears of the signal: the step is as good as done, and what was begun
/// goes.
TEST_F(SavingTest, BeforeAStepThatEndsMeanwhileLeavesNothingOfIt) {
  const Config config = tiny_.wide("run", 3, {"checkpoint.every=0", "run.stop_within=1"});
  const fs::path early = checkpoint_of(config, 3).concat(".tmp-early");
  Hooks hooks;
  std::atomic<bool> passed = false, begun = false;
  hooks.updated = [&](std::int64_t step, const Buffers&) {
    if (step == 4) passed = true;
  };
  hooks.gated = [&](std::int64_t step, int rank) {
    if (step != 4 || rank == 1) return;
    if (rank == 0) {
      while (!passed) std::this_thread::yield();  // rank 1 is done
      std::raise(SIGUSR1);
    }
    while (!fs::exists(early)) std::this_thread::yield();
    begun = true;
  };
  EXPECT_EQ(run(2, config, {}, hooks).last_step, 4);
  EXPECT_TRUE(begun);
  EXPECT_THAT(checkpoints(config), testing::ElementsAre("step-00000004"));
}

// A run that ends with an error has a sound state on its way to the disk.
TEST_F(SavingTest, UnderWayWhenTheRunFailsIsFinished) {
  Config config = tiny_.wide("run", 3);
  const auto texts = messages(3, [&](int) {
    Hooks hooks;
    hooks.writing = [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
    hooks.updated = [](std::int64_t step, const Buffers&) {
      if (step == 4) fail("step 4 went wrong");
    };
    return std::pair(config, hooks);
  });
  EXPECT_THAT(texts, Each(HasSubstr("step 4 went wrong")));
  EXPECT_NO_THROW(checkpoint::Checkpoint(checkpoint_of(config, 3)).verify());
  EXPECT_EQ(run(3, config).first_step, 3);
}

TEST_F(SavingTest, ADamagedPartIsFoundUnderAnotherShardingAndTheOlderOneTaken) {
  Config whole = tiny_.wide("whole", 3);
  run(3, whole);
  for (const auto& [ranks, zero] : {std::pair(3, 3), std::pair(2, 1), std::pair(1, 0), std::pair(4, 0)}) {
    for (const bool missing : {false, true}) {
      SCOPED_TRACE(fmt::format("{} ranks, zero {}, missing {}", ranks, zero, missing));
      const Config resumed =
          copy(whole, fmt::format("{} {} {}", ranks, zero, missing), {fmt::format("parallel.zero={}", zero)});
      interrupt(whole, 3, resumed);
      fs::copy(checkpoint_of(whole, 6), checkpoint_of(resumed, 6), fs::copy_options::recursive);
      const fs::path damaged = part(resumed, 6, 1, 3);
      missing ? void(fs::remove(damaged)) : flip(damaged);
      EXPECT_EQ(run(ranks, resumed).first_step, 3);
      EXPECT_THAT(log_of(resumed), mentions("passing over a damaged checkpoint: ", damaged.string(),
                                            "resumed after optimizer step 3"));
      EXPECT_NO_THROW(checkpoint::Checkpoint(checkpoint_of(resumed, 6)).verify());  // saved anew
      if (ranks == 3) expect_same_bits(whole, resumed);
    }
  }
  flip(part(whole, 6, 1, 3));
  flip(part(whole, 3, 2, 3));
  EXPECT_THAT(messages(2, [&](int) { return std::pair(whole, Hooks()); }),
              Each(HasSubstr("none of the 2 checkpoints")));
}

TEST_F(SavingTest, KeepsTheStepsThatStayForEver) {
  Config config = tiny_.config("run", {"checkpoint.every=1", "checkpoint.keep=1", "checkpoint.keep_every=2"});
  run(2, config);
  EXPECT_THAT(checkpoints(config), testing::ElementsAre("step-00000002", "step-00000004", "step-00000006"));
}

TEST_F(SavingTest, ASnapshotThatDoesNotFitIsRefusedAtTheStart) {
  Config config = tiny_.wide("run", 0);
  const model::ParameterMap map(config.model);
  Hooks hooks;
  // On the CPU everything else lies there, too.
  const std::int64_t copy_bytes = 12 * ((map.size() + 1) / 2);
  hooks.host_memory = on_host ? 2 * predicted_peak(2, config) - 1 : 2 * copy_bytes - 1;
  if (!on_host) hooks.device_memory = std::int64_t{1} << 40;
  EXPECT_THAT(run_error(2, config, {}, hooks), HasSubstr("checkpoint.every = 0"));
  config.checkpoint.every = 0;
  if (!on_host) hooks.host_memory = std::int64_t{1} << 30;
  EXPECT_EQ(run_error(2, config, {}, hooks), "no error");
}

}  // namespace
}  // namespace annulus::training::test
