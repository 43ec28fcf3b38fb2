// A shard that is damaged behind the back of a run: the run ends, on all ranks, and saves nothing more.

#include <regex>

#include "training/data/shard.hpp"
#include "training/io/atomic.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

class DamagedShard : public TinyTest {
 protected:
  /// The file of the run's shard number `index`.
  std::string shard(std::size_t index) const {
    return data::find_shards(std::array{tiny_.file("shards")}).at(index);
  }

  /// Another letter in the stored tokens, which every check but the checksum takes for good.
  static void damage(const std::string& file) {
    std::string bytes = io::read_text(file);
    bytes.at(bytes.find(std::string("t\0h\0e\0", 6))) = 'T';  // ids have 16 bits
    std::ofstream(file, std::ios::binary) << bytes;
    data::TokenShard::open(file);
  }

  /// Runs that would take minutes if nothing ended them: what the ranks are told.
  static std::vector<std::string> long_run(int ranks, Config config) {
    config.train.steps = 1000000;
    const auto start = std::chrono::steady_clock::now();
    return messages(ranks, [&](int) {
      Hooks hooks;
      hooks.updated = [start](std::int64_t, const Buffers&) {
        if (std::chrono::steady_clock::now() - start > std::chrono::seconds(60))
          throw std::runtime_error("nobody has found the damage");
      };
      return std::pair(config, hooks);
    });
  }
};

TEST_F(DamagedShard, EndsARunThatGoesOnAndSavesNothingMore) {
  Config config = tiny_.config("run", {"train.schedule_steps=6"});
  run(3, config);
  const std::string last_good = contents(checkpoint_of(config, 6));
  const std::string bad = shard(1);  // which rank 1 verifies
  damage(bad);

  config.checkpoint.every = 1;
  config.checkpoint.keep = 1000;
  const std::vector<std::string> texts = long_run(3, config);
  EXPECT_THAT(texts, Each(mentions("'" + bad + "': the checksum of the contents is ",
                                   "the shard is damaged; copy or write it again. Optimizer steps 7 to ",
                                   "(found on rank 1)")));
  EXPECT_EQ(contents(checkpoint_of(config, 6)), last_good);
  std::smatch steps;
  ASSERT_TRUE(std::regex_search(texts[0], steps, std::regex("Optimizer steps 7 to ([0-9]+) of this run")));
  const std::int64_t last = std::stoll(steps[1]);
  EXPECT_TRUE(fs::exists(checkpoint_of(config, last - 1)));
  EXPECT_FALSE(fs::exists(checkpoint_of(config, last)));
}

TEST_F(DamagedShard, IsNotLookedForWhereTheConfigurationSaysSo) {
  Config config = tiny_.config("run", {"data.verify=false"});
  damage(shard(0));
  EXPECT_EQ(run(2, config).last_step, 6);
}

}  // namespace
}  // namespace annulus::training::test
