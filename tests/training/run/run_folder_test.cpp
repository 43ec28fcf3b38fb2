#include <sys/stat.h>

#include "training/io/atomic.hpp"
#include "training/io/folder_lock.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

TEST(ResumePolicy, IsAWordOrAFile) {
  using Kind = ResumePolicy::Kind;
  EXPECT_EQ(ResumePolicy::parse("auto").kind, Kind::automatic);
  EXPECT_EQ(ResumePolicy::parse("never").kind, Kind::never);
  const annulus::test::TemporaryFolder folder;
  const std::string file = folder.write("a.h5", "");
  EXPECT_EQ(ResumePolicy::parse(file).kind, Kind::file);
  EXPECT_EQ(ResumePolicy::parse(file).checkpoint, file);
  EXPECT_THAT(error_text([] { ResumePolicy::parse("allways"); }), HasSubstr("--resume allways"));
}

class RunFolderTest : public TinyTest {
 protected:
  void SetUp() override { run(1, config_); }

  // config_ with what the first start has settled.
  Config effective() const { return with(config_, {"train.schedule_steps=6"}); }
  // Puts another configuration into the checkpoint of optimizer step `step`, the run's last.
  void store(std::int64_t step, const std::string& configuration) const {
    edit_checkpoint(config_, step,
                    [&](const model::ParameterMap&, const Buffers&, checkpoint::Progress& progress) {
                      progress.config = configuration;
                    });
  }

  fs::path in_folder(const char* name) const { return fs::path(config_.run.folder) / name; }

  const Config config_ = tiny_.config("run");
};

TEST_F(RunFolderTest, HoldsEverythingOfTheRun) {
  EXPECT_EQ(Config::load(in_folder("config.toml")).to_toml(), effective().to_toml());
  EXPECT_EQ(losses(config_).size(), 6u);
  EXPECT_THAT(log_of(config_), mentions("step 6/6", "saved "));
  EXPECT_TRUE(fs::exists(checkpoint_of(config_, 3)));
  EXPECT_TRUE(fs::exists(checkpoint_of(config_, 6)));
}

TEST_F(RunFolderTest, AFinishedRunIsLeftAsItIs) {
  const std::string metrics = io::read_text(in_folder("metrics.jsonl"));
  const Outcome outcome = run(1, config_);
  EXPECT_EQ(outcome.first_step, 6);
  EXPECT_EQ(outcome.last_step, 6);
  EXPECT_EQ(outcome.last_checkpoint, checkpoint_of(config_, 6).string());
  EXPECT_EQ(io::read_text(in_folder("metrics.jsonl")), metrics);
  EXPECT_THAT(log_of(config_), HasSubstr("nothing to do: 6 of 6 optimizer steps are done"));
}

TEST_F(RunFolderTest, ChangedKeysNameBothValues) {
  const std::string shard = (fs::path(config_.data.shards.front()) / "tokens-000000.h5").string();
  const struct {
    std::string change, said;
  } cases[] = {{"train.lr=0.02", "train.lr = 0.02 differs from 0.01"},
               {"model.ffn=48", "model.ffn = 48 differs from 40"},
               {"attention.mask=documents", "attention.mask = 'documents' differs from 'causal'"},
               {"train.micro_batches=2", "train.micro_batches = 2"},
               {"data.shards=" + shard, "data.shards hold other tokens"}};
  for (const auto& [change, said] : cases)
    EXPECT_THAT(run_error(1, with(config_, {change})), HasSubstr(said));
  // The configuration that is saved stays that of the run.
  EXPECT_EQ(Config::load(in_folder("config.toml")).model.ffn, 40);
}

TEST_F(RunFolderTest, NeverRefusesAFolderThatHoldsARun) {
  EXPECT_THAT(run_error(1, config_, ResumePolicy::parse("never")),
              mentions(config_.run.folder, "already holds a run"));
  EXPECT_EQ(run(1, tiny_.config("fresh"), ResumePolicy::parse("never")).last_step, 6);
}

TEST_F(RunFolderTest, RecordsBehindTheCheckpointAreWrittenAnew) {
  const auto before = losses(config_);
  fs::remove_all(checkpoint_of(config_, 6));
  const Outcome outcome = run(1, config_);
  EXPECT_EQ(outcome.first_step, 3);
  EXPECT_EQ(losses(config_), before);  // steps 1 … 6, each once
}

TEST_F(RunFolderTest, ACheckpointStartsARunOfItsOwn) {
  Config branch = tiny_.config("branch", {"train.lr=0.005", "train.steps=5"});  // another recipe
  const Outcome outcome = run(1, branch, ResumePolicy::parse(checkpoint_of(config_, 3).string()));
  EXPECT_EQ(outcome.first_step, 3);
  EXPECT_EQ(outcome.last_step, 5);
  // In its own folder it is a run like any other.
  branch.train.steps = 6;
  EXPECT_EQ(run(1, branch).first_step, 5);
  branch.train.lr = 0.006;
  EXPECT_THAT(run_error(1, branch), HasSubstr("train.lr = 0.006 differs from 0.005"));

  Config other = tiny_.config("other", {"model.rope_theta=5000"});
  const auto resume = ResumePolicy::parse(checkpoint_of(config_, 3).string());
  EXPECT_THAT(run_error(1, other, resume), HasSubstr("model.rope_theta = 5000.0 differs from 10000.0"));
  EXPECT_THAT(run_error(1, config_, resume), mentions("optimizer step 6", "another run.folder"));
}

TEST_F(RunFolderTest, MoreStepsLeaveTheLearningRateAtItsEnd) {
  Config longer = with(config_, {"train.steps=10"});
  EXPECT_EQ(run(2, longer).last_step, 10);
  const auto rates = metric(config_, "lr");
  ASSERT_EQ(rates.size(), 10u);
  for (std::size_t i = 0; i < rates.size(); ++i)
    EXPECT_DOUBLE_EQ(rates[i], config_.learning_rate().at(static_cast<std::int64_t>(i))) << i;
  for (std::size_t i = 5; i < rates.size(); ++i) EXPECT_EQ(rates[i], config_.train.min_lr) << i;
  EXPECT_THAT(log_of(config_), AllOf(HasSubstr("at train.min_lr = 0.001 from optimizer step 6"),
                                     Not(HasSubstr("takes another curve"))));
  // The length is kept from piece to piece, not asked of the last one's steps.
  longer.train.steps = 12;
  run(1, longer);
  EXPECT_EQ(metric(config_, "lr").back(), config_.train.min_lr);
}

TEST_F(RunFolderTest, FewerStepsKeepTheCurve) {
  fs::remove_all(checkpoint_of(config_, 6));
  Config shorter = with(config_, {"train.steps=4"});
  EXPECT_EQ(run(1, shorter).last_step, 4);
  EXPECT_DOUBLE_EQ(metric(config_, "lr").at(3), config_.learning_rate().at(3));
}

TEST_F(RunFolderTest, AnotherCurveIsTakenWhereItIsAskedForAndSaid) {
  Config longer = with(config_, {"train.steps=10", "train.schedule_steps=10"});
  run(1, longer);
  const auto rates = metric(config_, "lr");
  ASSERT_EQ(rates.size(), 10u);
  EXPECT_DOUBLE_EQ(rates[5], 0.001);
  EXPECT_DOUBLE_EQ(rates[6], longer.learning_rate().at(6));
  EXPECT_THAT(log_of(config_),
              AllOf(mentions("schedule_steps = 10 instead of", "optimizer step 7 runs at 0.00378"),
                    Not(HasSubstr("is at train.min_lr"))));
}

// Before train.schedule_steps there was train.steps alone.
TEST_F(RunFolderTest, CheckpointsWithoutALengthOfTheScheduleHaveTheirSteps) {
  std::string configuration = effective().to_toml();
  const std::string line = "schedule_steps = 6\n";
  ASSERT_NE(configuration.find(line), std::string::npos);
  configuration.erase(configuration.find(line), line.size());
  store(6, configuration);
  Config longer = with(config_, {"train.steps=8"});
  run(1, longer);
  EXPECT_EQ(metric(config_, "lr").back(), config_.train.min_lr);
  EXPECT_EQ(Config::parse(checkpoint::Checkpoint(checkpoint_of(config_, 8)).progress().config, "")
                .train.schedule_steps,
            6);
}

TEST_F(RunFolderTest, ABranchGoesOnAlongTheCurve) {
  Config branch = tiny_.config("branch", {"train.steps=8"});
  const auto resume = ResumePolicy::parse(checkpoint_of(config_, 3).string());
  run(1, branch, resume);
  const auto rates = metric(branch, "lr");
  ASSERT_EQ(rates.size(), 5u);
  for (std::size_t i = 0; i < rates.size(); ++i)
    EXPECT_DOUBLE_EQ(rates[i], config_.learning_rate().at(static_cast<std::int64_t>(i) + 3)) << i;
  // Another recipe may not fit the length that it takes over.
  branch = tiny_.config("slow", {"train.steps=20", "train.warmup_steps=10"});
  EXPECT_THAT(run_error(1, branch, resume), mentions("train.warmup_steps = 10", "train.schedule_steps = 6"));
}

TEST_F(RunFolderTest, CheckpointsOfOtherVersionsGoOn) {
  Config longer = with(config_, {"train.steps=7"});
  store(6, effective().to_toml() + "colour = 'red'\n");  // a key of [checkpoint], the last section
  EXPECT_EQ(run(1, longer).last_step, 7);
  EXPECT_THAT(log_of(config_), mentions("warning", "checkpoint.colour = 'red'"));
  store(7, effective().to_toml() + "[model.experts]\ncount = 8\n");
  EXPECT_THAT(run_error(1, longer), mentions(checkpoint_of(config_, 7).string(), "model.experts"));
}

TEST_F(RunFolderTest, ADamagedCheckpointThatWasAskedForIsNamed) {
  const auto path = checkpoint_of(config_, 6), part = path / "part-00000-of-00001.safetensors";
  std::string bytes = io::read_text(part);
  bytes[bytes.size() - 100] ^= 1;
  io::write_text_atomically(part, bytes);
  EXPECT_THAT(run_error(1, config_, ResumePolicy::parse(path.string())),
              mentions(part.string(), "second_moment/", "--resume"));
}

TEST_F(RunFolderTest, LeftoversOfAKilledSaveGo) {
  const fs::path leftover = io::temporary_name(checkpoint_of(config_, 6));
  fs::create_directories(leftover);
  io::write_text_atomically(leftover / "part-00000-of-00002.safetensors", "half");
  run(1, config_);
  EXPECT_FALSE(fs::exists(leftover));
}

class RunFolder : public TinyTest {};

TEST_F(RunFolder, TwoRunsAtTheSameTimeAreRefused) {
  const Config config = tiny_.config("run");
  fs::create_directories(config.run.folder);
  const io::FolderLock other(config.run.folder, {"run.lock", "in use"});
  EXPECT_THAT(run_error(1, config), mentions(config.run.folder, "in use by another run"));
}

TEST_F(RunFolder, AFileInTheWayIsNamed) {
  Config config = tiny_.config("run");
  const std::string occupied = tiny_.folder().write("occupied", "");
  for (const std::string& folder : {occupied, occupied + "/run", std::string("/proc/annulus")}) {
    config.run.folder = folder;
    EXPECT_THAT(run_error(1, config), HasSubstr("run.folder = '" + folder + "'"));
  }
}

TEST_F(RunFolder, WhatIsNoFolderInThePlaceOfCheckpointsIsNamedBeforeTheFirstStep) {
  const Config config = tiny_.config("run");
  const fs::path path = fs::path(config.run.folder) / "checkpoints";
  fs::create_directories(config.run.folder);
  Hooks hooks;
  hooks.updated = [&](std::int64_t, const Buffers&) { ADD_FAILURE() << "it has begun"; };
  const auto said = [&] { return run_error(1, config, {}, hooks); };
  io::write_text_atomically(path, "a file");
  EXPECT_THAT(said(), mentions("'" + path.string() + "' is no folder", "run.folder"));
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(said(), HasSubstr("'" + path.string() + "' is no folder"));
}

TEST_F(RunFolderTest, LinksAndPipesInThePlaceOfItsFilesAreNamed) {
  Config longer = with(config_, {"train.steps=7"});
  const fs::path folder = config_.run.folder, elsewhere = tiny_.folder().path() / "elsewhere";
  const auto said_with = [&](const char* name, const auto& put) {
    fs::rename(folder / name, elsewhere);
    put(folder / name);
    const std::string said = run_error(1, longer);
    fs::remove(folder / name);
    fs::rename(elsewhere, folder / name);
    return said;
  };
  for (const char* name : {"checkpoints", "config.toml", "metrics.jsonl", "run.lock", "train.log"})
    EXPECT_THAT(said_with(name, [&](const fs::path& path) { fs::create_symlink(elsewhere, path); }),
                mentions((folder / name).string(), "is a symbolic link"));
  for (const char* name : {"config.toml", "metrics.jsonl", "train.log"})
    EXPECT_THAT(said_with(name, [&](const fs::path& path) { ::mkfifo(path.c_str(), 0600); }),
                mentions((folder / name).string(), "no regular file"));
  EXPECT_EQ(run(1, longer).last_step, 7);
}

TEST_F(RunFolderTest, MetricsOfAnotherFormAreNamed) {
  Config longer = with(config_, {"train.steps=7"});
  const fs::path file = in_folder("metrics.jsonl");
  io::write_text_atomically(file, "{\"step\": \"one\"}\n");
  EXPECT_THAT(run_error(1, longer), mentions(file.string(), "line 1"));
}

TEST_F(RunFolder, SaysThatItWasMoved) {
  const Config config = tiny_.config("run");
  const fs::path folder = config.run.folder, moved = tiny_.folder().path() / "moved";
  Hooks hooks;
  hooks.updated = [&](std::int64_t step, const Buffers&) {
    if (step == 2) fs::rename(folder, moved);
  };
  run(1, config, {}, hooks);
  EXPECT_THAT(io::read_text(moved / "train.log"),
              mentions("error", "run.folder = '" + folder.string() + "' was deleted, renamed"));
  EXPECT_TRUE(fs::exists(checkpoint_of(config, 6)));  // the state is not lost
}

}  // namespace
}  // namespace annulus::training::test
