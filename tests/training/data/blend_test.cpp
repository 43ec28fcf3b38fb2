#include <cmath>
#include <random>

#include <annulus/attention/sequence/layout.hpp>

#include "training/data/blend/blend.hpp"
#include "training/data/loader.hpp"
#include "training/data/shards.hpp"

namespace annulus::data {
namespace {

using test::RandomStream;
using test::TemporaryFolder;

/// Sets of one weight each, of so many sequences.
std::vector<BlendOrder::Set> sets_of(const std::vector<std::int64_t>& weights, std::int64_t sequences = 10) {
  std::vector<BlendOrder::Set> sets;
  for (const std::int64_t weight : weights)
    sets.push_back({.sequences = sequences, .weight = weight, .seed = sets.size()});
  return sets;
}

TEST(BlendOrder, SharesAreExactToOneSequenceAtEveryStep) {
  std::mt19937_64 random(1);
  std::vector<std::vector<std::int64_t>> all = {{1},       {1, 1},         {7, 2, 1},
                                                {1, 1000}, {500000, 1, 1}, {300000, 200000, 500000}};
  for (int i = 0; i < 30; ++i) {
    std::vector<std::int64_t>& weights = all.emplace_back(1 + random() % 12);
    for (std::int64_t& weight : weights)
      weight = 1 + static_cast<std::int64_t>(random() % (i % 2 == 0 ? 20 : 1000000));
  }
  for (const auto& weights : all) {
    const BlendOrder order(sets_of(weights), true);
    BlendState state = order.complete({});
    std::int64_t sum = 0;
    for (const std::int64_t weight : weights) sum += weight;
    for (std::int64_t n = 1; n <= 3000; ++n) {
      order.next(state);
      for (std::size_t set = 0; set < weights.size(); ++set)
        ASSERT_LT(std::abs(n * weights[set] - state[set].drawn * sum), sum)
            << "set " << set << " of " << testing::PrintToString(weights) << " after " << n;
    }
  }
}

TEST(BlendOrder, SetsAreReadEpochByEpoch) {
  const BlendOrder order({{.sequences = 3, .weight = 3, .seed = 1}, {.sequences = 5, .weight = 1, .seed = 2}},
                         true);
  BlendState state = order.complete({});
  std::vector<std::vector<std::int64_t>> read(2);
  for (int i = 0; i < 40; ++i) {
    const auto [set, index] = order.next(state);
    read[set].push_back(index);
  }
  EXPECT_EQ(state, (BlendState{{{10, 0}, 3, 30}, {{2, 0}, 5, 10}}));
  for (const auto& [set, size] : {std::pair(0, 3), std::pair(1, 5)}) {
    auto& of = read[static_cast<std::size_t>(set)];
    for (auto epoch = of.begin(); epoch != of.end(); epoch += size) {
      std::sort(epoch, epoch + size);
      for (int i = 0; i < size; ++i) EXPECT_EQ(epoch[i], i);
    }
  }
}

TEST(BlendOrder, OneSetIsReadAsASequenceOrder) {
  const SequenceOrder one(10, 7, true);
  const BlendOrder order({{.sequences = 10, .weight = 5, .seed = 7}}, true);
  BlendState state = order.complete({});
  StreamState at;
  for (int i = 0; i < 35; ++i) {
    EXPECT_EQ(order.next(state), (BlendOrder::Draw{0, one(at)}));
    at = one.advance(at, 1);
    EXPECT_EQ(state.front().at, at);
  }
}

// An epoch that has begun is read to its end as it began.
TEST(BlendOrder, SequencesThatCameLaterAreOfTheNextEpoch) {
  const BlendOrder before(sets_of({1}, 10), true), after(sets_of({1}, 15), true);
  BlendState state = before.complete({}), whole = state;
  before.skip(state, 4);
  before.skip(whole, 4);
  state = after.complete(state);
  for (int i = 4; i < 10; ++i) EXPECT_EQ(after.next(state), before.next(whole));
  EXPECT_EQ(state.front().at, (StreamState{1, 0}));
  std::vector<std::int64_t> epoch;
  for (int i = 0; i < 15; ++i) epoch.push_back(after.next(state).index);
  EXPECT_EQ(state.front().at, (StreamState{2, 0}));
  std::ranges::sort(epoch);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(epoch[static_cast<std::size_t>(i)], i);
}

TEST(BlendOrder, StatesOfOtherSetsAreErrors) {
  const BlendOrder order(sets_of({1, 2}, 10), true);
  EXPECT_THAT(error_text([&] { order.complete({{}}); }), mentions("1 sets", "of 2"));
  EXPECT_THAT(error_text([&] { order.complete({{}, {.at = {0, 10}}}); }), mentions("sequence 10"));
  EXPECT_THAT(error_text([&] { order.complete({{}, {.sequences = 11}}); }), mentions("11", "10"));
  EXPECT_THAT(error_text([] { BlendOrder(sets_of({1, 0}), true); }), mentions("weight 0"));
  EXPECT_THAT(error_text([] { BlendOrder({}, true); }), mentions("one at least"));
}

class BlendTest : public testing::Test {
 protected:
  BlendTest() {
    for (const char* name : {"a", "b", "c"}) std::filesystem::create_directory(folder_.path() / name);
    streams_ = {RandomStream::write<std::uint16_t>(folder_.path() / "a", {60, 45, 100}, 1000, 6, 5),
                RandomStream::write<std::uint16_t>(folder_.path() / "b", {71}, 1000, 6, 6),
                RandomStream::write<std::uint16_t>(folder_.path() / "c", {501}, 1000, 6, 7)};
  }
  Blend blend(const std::vector<std::int64_t>& weights) const {
    std::vector<Blend::Set> sets;
    for (std::size_t i = 0; i < weights.size(); ++i)
      sets.push_back({std::string(1, static_cast<char>('a' + i)), weights[i],
                      std::make_shared<TokenDataset>(streams_[i].files, 10)});
    return Blend(std::move(sets));
  }
  static LoaderOptions options(std::int64_t groups = 1, std::int64_t group = 0) {
    LoaderOptions options;
    options.rows = Layout().shard(10, 1, 0);
    options.groups = groups;
    options.group = group;
    options.seed = 9;
    return options;
  }

  TemporaryFolder folder_;
  std::vector<RandomStream> streams_;
};

// Whatever the number of groups and wherever reading stopped: the same sequences in the same order.
TEST_F(BlendTest, GoesOnWithOtherGroups) {
  const Blend data = blend({2, 1, 3});
  std::vector<Sequence> expected;
  Loader whole(data, options());
  for (int i = 0; i < 120; ++i) expected.push_back(whole.next());
  for (const std::int64_t stop : {0, 1, 30, 57, 60})
    for (const std::int64_t groups : {1, 2, 3, 30}) {  // 30: more than some set has sequences
      if ((120 - stop) % groups != 0) continue;
      Loader first(data, options());
      for (std::int64_t i = 0; i < stop; ++i) first.next();  // what was read ahead is not in its state
      for (std::int64_t group = 0; group < groups; ++group) {
        LoaderOptions with = options(groups, group);
        with.start = first.state();
        Loader loader(data, with);
        for (std::int64_t at = stop + group; at < 120; at += groups) {
          const Sequence sequence = loader.next();
          const Sequence& wanted = expected[static_cast<std::size_t>(at)];
          EXPECT_EQ(sequence.set, wanted.set);
          test::expect_equal(sequence, wanted);
        }
        EXPECT_EQ(loader.state(), whole.state());
      }
    }
}

// The order of a set does not depend on the others.
TEST_F(BlendTest, ASetIsReadInItsOrderWhateverTheOthersAre) {
  const auto read = [&](const Blend& data, const std::string& name) {
    Loader loader(data, options());
    std::vector<std::int64_t> indices;
    while (indices.size() < 50) {
      const Sequence sequence = loader.next();
      if (data.sets()[sequence.set].name == name) indices.push_back(sequence.index);
    }
    return indices;
  };
  EXPECT_EQ(read(blend({2, 1, 3}), "a"), read(blend({1}), "a"));
  EXPECT_EQ(read(blend({2, 1, 3}), "b"), read(blend({1, 100000}), "b"));
  const Blend renamed({{"z", 1, std::make_shared<TokenDataset>(streams_[0].files, 10)}});
  EXPECT_NE(read(blend({1}), "a"), read(renamed, "z"));
}

TEST_F(BlendTest, SetsOfAnotherTokenizerAreRefused) {
  std::filesystem::create_directory(folder_.path() / "other");
  const RandomStream other = RandomStream::write<std::uint16_t>(folder_.path() / "other", {60}, 999, 6, 5);
  EXPECT_THAT(error_text([&] {
                Blend({{"a", 1, std::make_shared<TokenDataset>(streams_[0].files, 10)},
                       {"other", 1, std::make_shared<TokenDataset>(other.files, 10)}});
              }),
              mentions("set 'a'", "set 'other'", "999", "different tokenizers"));
}

}  // namespace
}  // namespace annulus::data
