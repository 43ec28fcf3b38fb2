// Configurations and checkpoints that were written before keys were renamed. tests/train/fixture/e154458 is a
// run of that commit on the fixture's texts, with the byte tokenizer and every renamed key at another value
// than its default.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/config/renamed.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/json_lines.hpp>

#include "support/error_text.hpp"
#include "train/config_table.hpp"
#include "train/tiny_run.hpp"

namespace annulus::train {
namespace {

namespace fs = std::filesystem;
using annulus::test::error_text;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

class RenamedKeys : public testing::Test {
 protected:
  RenamedKeys() {
    config::set_old_name_warnings([this](const std::string& text) { warnings_.push_back(text); });
  }
  ~RenamedKeys() override { config::set_old_name_warnings(nullptr); }

  /// The configuration of the old run, in another folder.
  Config old_config(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> overrides = {"run.folder=" + run_.string(),
                                          "data.shards=" + tiny_.file("shards").string()};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return Config::load(old_ / "config.toml", overrides);
  }

  const test::TinyRun tiny_;
  const fs::path old_ = ANNULUS_OLD_RUN, run_ = tiny_.file("run");
  std::vector<std::string> warnings_;
};

TEST_F(RenamedKeys, AreReadFromFilesOfBefore) {
  const Config config = old_config();
  EXPECT_EQ(config.run.stall_timeout, 61);
  EXPECT_EQ(config.parallel.max_ctas, 3);
  const std::string file = (old_ / "config.toml").string();
  EXPECT_THAT(warnings_, UnorderedElementsAre(
                             file + ":5: run.stall_limit is an old name: write run.stall_timeout",
                             file + ":38: parallel.nccl_blocks is an old name: write parallel.max_ctas"));
  EXPECT_THAT(config.to_toml(), AllOf(HasSubstr("stall_timeout = 61\n"), HasSubstr("max_ctas = 3\n"),
                                      Not(HasSubstr("stall_limit")), Not(HasSubstr("nccl_blocks"))));
}

TEST_F(RenamedKeys, AreReadFromSet) {
  const Config config = Config::parse("", "run.toml", std::vector<std::string>{"parallel.nccl_blocks=5"});
  EXPECT_EQ(config.parallel.max_ctas, 5);
  EXPECT_THAT(warnings_,
              UnorderedElementsAre("--set parallel.nccl_blocks=5: parallel.nccl_blocks is an old name: "
                                   "write parallel.max_ctas"));
  // --set goes before the file, whichever names the two use.
  EXPECT_EQ(old_config({"parallel.max_ctas=7"}).parallel.max_ctas, 7);
  EXPECT_EQ(Config::parse("[parallel]\nmax_ctas = 1\n", "run.toml",
                          std::vector<std::string>{"parallel.nccl_blocks=2"})
                .parallel.max_ctas,
            2);
}

TEST_F(RenamedKeys, UnderBothNamesAreAnError) {
  EXPECT_THAT(error_text([] { Config::parse("[run]\nstall_limit = 1\nstall_timeout = 2\n", "run.toml"); }),
              AllOf(HasSubstr("run.toml:2: run.stall_limit is the old name of run.stall_timeout"),
                    HasSubstr("run.toml:3"), HasSubstr("keep run.stall_timeout alone")));
  EXPECT_THAT(
      error_text([] {
        Config::parse("", "run.toml", std::vector<std::string>{"run.stall_timeout=2", "run.stall_limit=1"});
      }),
      AllOf(HasSubstr("--set run.stall_timeout=2"),
            HasSubstr("run.stall_limit is the old name of run.stall_timeout"),
            HasSubstr("keep run.stall_timeout alone")));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(RenamedKeys, OfACheckpointOfBeforeGoOn) {
  fs::create_directories(run_ / "checkpoints");
  const fs::path checkpoint = run_ / "checkpoints" / "step-00000003.h5";
  fs::copy(old_ / "step-00000003.h5", checkpoint);
  fs::copy(old_ / "metrics.jsonl", run_ / "metrics.jsonl");
  const Config stored = Config::parse_stored(annulus::checkpoint::Checkpoint(checkpoint).progress().config,
                                             checkpoint.string());
  Config defaults;
  for (const config::Renamed& row : config::renamed()) {
    if (row.names != config::Names::configuration) continue;
    for (const Key& key : config_table()) {
      if (key.name == row.now) {
        EXPECT_NE(value_text(key, stored), value_text(key, defaults)) << row.now;
      }
    }
    const std::string file = checkpoint.string();
    EXPECT_THAT(warnings_, testing::Contains(AllOf(HasSubstr(file), HasSubstr(std::string(row.before)),
                                                   HasSubstr(std::string(row.now)))));
  }

  std::vector<double> expected;
  io::read_json_lines(old_ / "metrics.jsonl", [&](const nlohmann::json& record, std::int64_t) {
    expected.push_back(record.at("loss"));
  });
  const Config config = old_config();
  const Outcome outcome = test::run(1, config);
  EXPECT_EQ(outcome.first_step, 3);
  EXPECT_EQ(outcome.last_step, 6);
  EXPECT_LT(test::largest_difference(test::losses(config), expected), 2e-5);

  // What this run leaves has the new names, and is gone on from without a warning.
  warnings_.clear();
  const Config written = Config::load(run_ / "config.toml");
  const Config saved = Config::parse_stored(
      checkpoint::Checkpoint(test::checkpoint_of(config, 6)).progress().config, "step 6");
  for (const Config& now : {written, saved}) {
    EXPECT_EQ(now.run.stall_timeout, 61);
    EXPECT_EQ(now.parallel.max_ctas, 3);
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

}  // namespace
}  // namespace annulus::train
