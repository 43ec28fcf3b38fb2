#include <annulus/training/data/packer.hpp>
#include <nlohmann/json.hpp>
#include <numeric>

#include "training/data/shard.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

constexpr std::int64_t length = 50;

/// What a run reads: blends, and shards that come later.
class Reading : public TinyTest {
 protected:
  /// A folder of shards of so many sequences each, of letters from `first` on.
  std::string shards(const std::string& name, const std::vector<std::int64_t>& sequences, char first = 'a') {
    fs::create_directories(tiny_.file(name));
    int number = 0;
    for (const std::int64_t of : sequences) {
      std::vector<std::int32_t> tokens;
      for (std::int64_t i = 0; i < of * length + (number == 0 ? 1 : 0); ++i)
        tokens.push_back(first + static_cast<std::int32_t>(i * i * (number + 1) % 13));
      data::write_shard(tiny_.file(name) / fmt::format("{}.h5", number++), *data::make_byte_tokenizer(),
                        tokens, std::vector<std::int64_t>{0});
    }
    return tiny_.file(name).string();
  }

  /// A run on sets, each a group of one rank.
  Config blended(const std::string& name, const std::vector<Config::DataSet>& sets,
                 std::vector<std::string> keys = {}) const {
    Config config = tiny_.config(name);
    config.data.shards.clear();
    config.data.sets = sets;
    keys.push_back("parallel.context=1");
    return with(config, keys);
  }
};

TEST_F(Reading, ABlendHasItsSharesAtEveryStep) {
  const std::vector<Config::DataSet> sets = {{"many", {shards("many", {20})}, 0.7},
                                             {"few", {shards("few", {3}, 'n')}, 0.3}};
  const Config config = blended("run", sets, {"train.micro_batches=3"});
  run(1, config);
  std::int64_t all = 0, few = 0;
  for (const nlohmann::json& record : records(config)) {
    const nlohmann::json& of = record.at("sets");
    const std::int64_t now = of.at("few").at("sequences");
    all += 3;
    few += now;
    EXPECT_EQ(of.at("many").at("sequences"), 3 - now);
    EXPECT_LT(std::abs(double(few) - 0.3 * double(all)), 1);
    // The loss of the step is the mean over the tokens of all sets.
    double sum = 0, targets = 0;
    for (const auto& [name, set] : of.items()) {
      EXPECT_EQ(set.at("loss").is_null(), set.at("sequences") == 0) << name;
      targets += double(set.at("targets"));
      if (set.at("targets") > 0) sum += double(set.at("loss")) * double(set.at("targets"));
    }
    EXPECT_EQ(record.at("targets"), targets);
    EXPECT_NEAR(record.at("loss"), sum / targets, 1e-12);
    EXPECT_NEAR(of.at("few").at("epochs"), double(few) / 3, 1e-12);
    EXPECT_NEAR(of.at("many").at("epochs"), double(all - few) / 20, 1e-12);
    EXPECT_EQ(record.at("epoch"), 0) << "of the set that is furthest behind";
  }
  EXPECT_THAT(log_of(config), mentions("many: 70 % of the sequences", "few: 30 %",
                                       "set 'few' of data.sets has been read 1 times; epoch 1 follows"));
  EXPECT_THAT(log_of(config), Not(HasSubstr("set 'many' of data.sets has been read")));
}

TEST_F(Reading, ABlendGoesOnBitByBitAndOnOtherRanks) {
  const std::vector<Config::DataSet> sets = {{"many", {shards("many", {20, 4})}, 2},
                                             {"few", {shards("few", {5}, 'n')}, 1}};
  const auto with_micro_batches = [&](const std::string& name, int micro_batches) {
    return blended(name, sets, {fmt::format("train.micro_batches={}", micro_batches)});
  };
  const Config whole = with_micro_batches("whole", 2);
  run(2, whole);
  expect_same_when_resumed(whole, 2, with_micro_batches("again", 2));
  EXPECT_EQ(last_state(whole).progress.sets, last_state(with_micro_batches("again", 2)).progress.sets);
  for (const auto& [ranks, micro_batches] : {std::pair(4, 1), std::pair(1, 4)}) {
    const Config other = with_micro_batches(fmt::format("{} ranks", ranks), micro_batches);
    interrupt(whole, 3, other);
    EXPECT_EQ(run(ranks, other).first_step, 3);
    EXPECT_LT(largest_difference(losses(whole), losses(other)), 2e-5);
    EXPECT_EQ(last_state(whole).progress.sets, last_state(other).progress.sets);
  }
  // Two sequences a pass, each over two ranks: the sets are told apart as one rank does it.
  Config passes = with(with_micro_batches("passes", 4), {"train.sequences_per_pass=2", "parallel.context=2"});
  run(2, passes);
  const std::vector<nlohmann::json> one = records(whole), other = records(passes);
  for (std::size_t step = 0; step < one.size(); ++step)
    for (const auto& [name, set] : one[step].at("sets").items()) {
      const nlohmann::json& its = other[step].at("sets").at(name);
      EXPECT_EQ(its.at("sequences"), set.at("sequences"));
      EXPECT_EQ(its.at("targets"), set.at("targets"));
      EXPECT_NEAR(its.at("loss"), set.at("loss"), 2e-5);
    }
}

TEST_F(Reading, WeightsAndSetsMayChangeWhenARunGoesOn) {
  const std::string many = shards("many", {20}), few = shards("few", {5}, 'n'),
                    more = shards("more", {4}, 'A');
  const Config first =
      blended("run", {{"many", {many}, 1}, {"few", {few}, 1}}, {"train.steps=3", "train.micro_batches=4"});
  run(1, first);
  const std::vector<checkpoint::SetProgress> before = last_state(first).progress.sets;
  EXPECT_EQ(before.front().drawn, 6);

  Config second =
      blended("run", {{"few", {few}, 1}, {"many", {many}, 3}}, {"train.steps=6", "train.micro_batches=4"});
  run(1, second);
  EXPECT_THAT(log_of(second), mentions("the weights of data.sets are few 1, many 3 instead of many 1, few 1",
                                       "from optimizer step 4 on"));
  const std::vector<checkpoint::SetProgress> now = last_state(second).progress.sets;
  EXPECT_EQ(now[0].drawn, 3);
  EXPECT_EQ(now[1].drawn, 9);
  EXPECT_EQ(now[1].sequences_read, 15) << "what was read of a set counts on";

  Config third =
      blended("run", {{"many", {many}, 1}, {"more", {more}, 1}}, {"train.steps=7", "train.micro_batches=4"});
  run(1, third);
  EXPECT_THAT(log_of(third),
              mentions("set 'more' of data.sets is new", "set 'few' of data.sets is left out"));
  EXPECT_EQ(last_state(third).progress.sets[0].sequences_read, 17);
  EXPECT_EQ(last_state(third).progress.sets[1].sequences_read, 2);

  Config shards = with(third, {"data.sets=[]", "data.shards=" + many, "train.steps=8"});
  EXPECT_THAT(run_error(1, shards), mentions("trained on data.sets", "reads data.shards"));
}

// An epoch of 6, then of 8 and at last of 11 sequences, two at a time: what came while an epoch was read is
// of the next one, also where the run goes on twice in one epoch and on other ranks.
TEST_F(Reading, ShardsThatComeLaterAreOfTheNextEpoch) {
  for (const bool in_sets : {false, true}) {
    for (const int ranks : {1, 2}) {
      const std::string name = fmt::format("grown {} {}", ranks, in_sets),
                        folder = shards(name + " shards", {4, 2});
      const auto config_of = [&](int steps, int on_ranks) {
        std::vector<std::string> keys = {fmt::format("train.steps={}", steps),
                                         "train.schedule_steps=20",
                                         "train.warmup_steps=1",
                                         "checkpoint.every=1",
                                         "parallel.context=1",
                                         fmt::format("train.micro_batches={}", 2 / on_ranks)};
        if (in_sets) return blended(name, {{"all", {folder}, 1}}, keys);
        Config config = with(tiny_.config(name), keys);
        config.data.shards = {folder};
        return config;
      };
      const auto add = [&](const char* file, std::int64_t sequences) {
        std::vector<std::int32_t> tokens(static_cast<std::size_t>(sequences * length));
        std::iota(tokens.begin(), tokens.end(), 50);
        data::write_shard(fs::path(folder) / file, *data::make_byte_tokenizer(), tokens,
                          std::vector<std::int64_t>{0});
      };
      run(ranks, config_of(1, ranks));
      add("2.h5", 2);
      run(ranks, config_of(2, ranks));
      add("3.h5", 3);
      const Config all = config_of(9, 3 - ranks);
      run(3 - ranks, all);
      EXPECT_THAT(log_of(all),
                  mentions("1 new shards, 8 sequences instead of 6: they are read from epoch 1 on",
                           "1 new shards, 11 sequences instead of 8: they are read from epoch 1 on"));
      // 18 sequences: one epoch of 6 and one of 11.
      const checkpoint::SetProgress at = last_state(all).progress.sets.front();
      EXPECT_EQ(at.epoch, 2);
      EXPECT_EQ(at.sequences_read, 1);
      EXPECT_EQ(at.sequences, 11);
      EXPECT_EQ(at.shards, 4);
      EXPECT_EQ(state_of(all, checkpoint_of(all, 2)).progress.sets.front().sequences, 6);
      EXPECT_EQ(state_of(all, checkpoint_of(all, 3)).progress.sets.front().sequences, 11);
      fs::rename(fs::path(folder) / "3.h5", fs::path(folder) / "0a.h5");
      EXPECT_THAT(run_error(1, config_of(10, 1)),
                  mentions(in_sets ? "set 'all'" : "data.shards", "hold other tokens", "(4 shards)"));
    }
  }
}

// The text of a run by best fit: gaps are counted, and the run goes on on other ranks and with more shards.
TEST_F(Reading, BestFitCountsItsGapsAndGoesOn) {
  const auto config_of = [&](const std::string& name, int steps, int micro_batches) {
    return tiny_.config(name,
                        {"data.packing=best-fit", "attention.mask=documents", "data.sequence_length=600",
                         "parallel.context=1", fmt::format("train.steps={}", steps), "train.schedule_steps=6",
                         fmt::format("train.micro_batches={}", micro_batches)});
  };
  const Config whole = config_of("whole", 6, 2);
  run(2, whole);
  EXPECT_THAT(log_of(whole), HasSubstr("% of them gaps"));
  double gaps = 0;
  for (const nlohmann::json& record : records(whole)) {
    EXPECT_EQ(record.at("tokens"), record.at("step").get<int>() * 4 * 600);
    EXPECT_LE(record.at("targets").get<int>() + record.at("gap_tokens").get<int>(), 4 * 600);
    gaps += record.at("gap_tokens").get<double>();
  }
  EXPECT_GT(gaps, 0);
  expect_same_when_resumed(whole, 2, config_of("again", 6, 2));
  const Config other = config_of("other", 6, 1);
  interrupt(whole, 3, other);
  run(4, other);
  EXPECT_LT(largest_difference(losses(whole), losses(other)), 2e-5);
  EXPECT_EQ(metric(whole, "gap_tokens"), metric(other, "gap_tokens"));
  const Config context = with(config_of("context", 6, 4), {"parallel.context=2"});
  run(2, context);
  EXPECT_LT(largest_difference(losses(whole), losses(context)), 2e-5);
  EXPECT_EQ(metric(whole, "gap_tokens"), metric(context, "gap_tokens"));
  EXPECT_THAT(run_error(1, with(other, {"data.packing=stream", "train.micro_batches=4", "train.steps=7"})),
              mentions("data.packing = 'stream' differs from 'best-fit'"));
  EXPECT_THAT(error_text([&] { with(other, {"data.packing=ffd"}); }),
              mentions("data.packing = 'ffd'", "best-fit"));
}

TEST_F(Reading, WrongSetsAreRefused) {
  const std::string many = shards("many", {20});
  EXPECT_THAT(run_error(2, blended("run", {{"many", {many}, 1}, {"none", {tiny_.file("none").string()}, 1}})),
              mentions("data.sets, set 'none'", tiny_.file("none").string()));
  EXPECT_THAT(
      run_error(2, blended("run", {{"many", {many}, 1}, {"short", {tiny_.shard("short.h5", {20})}, 1}})),
      mentions("data.sets, set 'short'", "longer than the data: 20 tokens"));
  const Config one = blended("one", {{"many", {many}, 1}}), two = blended("one", {{"many", {many}, 2}});
  EXPECT_THAT(messages(2, [&](int rank) { return std::pair(rank == 0 ? one : two, Hooks()); }),
              Each(mentions("the sets of data.sets and their weights", "rank")));
}

}  // namespace
}  // namespace annulus::training::test
