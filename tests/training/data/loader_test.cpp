#include <algorithm>
#include <atomic>

#include <annulus/attention/sequence/layout.hpp>

#include "training/data/loader.hpp"
#include "training/data/shards.hpp"

namespace annulus::data {
namespace {

using test::RandomStream;
using test::TemporaryFolder;

class LoaderTest : public testing::Test {
 protected:
  LoaderTest()
      : stream_(RandomStream::write<std::uint16_t>(folder_.path(), {60, 45, 100}, 1000, 6, 5)),
        dataset_(std::make_shared<TokenDataset>(stream_.files, 10)) {}

  LoaderOptions options() const {
    LoaderOptions options;
    options.rows = Layout::parse("striped").shard(10, 3, 1);
    options.seed = 9;
    return options;
  }

  std::vector<Sequence> take(Loader& loader, int count) const {
    std::vector<Sequence> sequences;
    for (int i = 0; i < count; ++i) sequences.push_back(loader.next());
    return sequences;
  }

  TemporaryFolder folder_;
  RandomStream stream_;
  std::shared_ptr<const TokenDataset> dataset_;
};

void expect_equal(const std::vector<Sequence>& a, const std::vector<Sequence>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(i);
    test::expect_equal(a[i], b[i]);
  }
}

TEST_F(LoaderTest, PrefetchingChangesNothing) {
  LoaderOptions with = options();
  with.prefetch = 0;
  Loader plain(dataset_, with);
  const auto expected = take(plain, 45);
  for (const std::int64_t prefetch : {1, 2, 7}) {
    with.prefetch = prefetch;
    Loader loader(dataset_, with);
    expect_equal(take(loader, 45), expected);
    EXPECT_EQ(loader.state(), plain.state());
  }
}

TEST_F(LoaderTest, ReadsEverySequenceOnceAnEpochInAnOrderOfTheSeed) {
  ASSERT_EQ(dataset_->sequences(), 20);
  const auto epoch = [&](std::uint64_t seed, bool shuffle) {
    LoaderOptions with = options();
    with.seed = seed;
    with.shuffle = shuffle;
    Loader loader(dataset_, with);
    std::vector<std::int64_t> indices;
    for (const Sequence& sequence : take(loader, 20)) indices.push_back(sequence.index);
    EXPECT_EQ(loader.state().front().at, (StreamState{1, 0}));
    return indices;
  };
  std::vector<std::int64_t> sorted = epoch(0, false);
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end()));
  auto shuffled = epoch(1, true);
  EXPECT_NE(shuffled, sorted);
  EXPECT_NE(shuffled, epoch(2, true));
  EXPECT_EQ(shuffled, epoch(1, true));
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, sorted);
}

TEST_F(LoaderTest, GroupsAreDealtTheSequencesOfABatchAsBatchesGrow) {
  LoaderOptions with = options();
  with.groups = 2;
  with.dealing = {.work = [](std::span<const std::int64_t> starts) { return std::ssize(starts); },
                  .sequences = [](std::int64_t number) { return 2 + number; }};
  for (const std::int64_t prefetch : {0, 5}) {
    with.prefetch = prefetch;
    std::vector<std::vector<Sequence>> of_group;
    for (const std::int64_t group : {0, 1}) {
      with.group = group;
      Loader loader(dataset_, with);
      of_group.push_back(take(loader, 9));
      EXPECT_EQ(loader.state().front().at, (StreamState{0, 18}));
      // From the second batch on.
      LoaderOptions resumed = with;
      resumed.start = {{.at = {0, 4}}};
      resumed.dealing.sequences = [](std::int64_t number) { return 3 + number; };
      Loader later(dataset_, resumed);
      expect_equal(take(later, 7), {of_group.back().begin() + 2, of_group.back().end()});
    }
    LoaderOptions in_turns = options();
    Loader all(dataset_, in_turns);
    for (std::size_t batch = 0, first = 0; batch < 3; first += 2 + batch++) {
      std::vector<std::int64_t> dealt, wanted;
      for (const std::vector<Sequence>& group : of_group)
        for (std::size_t i = 0; i < 2 + batch; ++i) dealt.push_back(group[first + i].index);
      for (const Sequence& sequence : take(all, static_cast<int>(2 * (2 + batch))))
        wanted.push_back(sequence.index);
      std::ranges::sort(dealt);
      std::ranges::sort(wanted);
      EXPECT_EQ(dealt, wanted);
    }
  }
}

TEST_F(LoaderTest, RanksWithoutRowsStillLearnTheDocuments) {
  LoaderOptions with = options();
  with.rows = Layout().shard(10, 16, 15);
  ASSERT_TRUE(with.rows.rows.empty());
  Loader loader(dataset_, with);
  const Sequence sequence = loader.next();
  EXPECT_TRUE(sequence.tokens.empty());
  EXPECT_FALSE(sequence.document_starts.empty());
}

TEST_F(LoaderTest, ErrorsOfTheThreadComeOutOfNext) {
  test::RawShard<> bad;
  bad.tokens = std::vector<std::uint16_t>(41, 1);
  bad.tokens[25] = 300;
  bad.documents = {0};
  const TemporaryFolder folder;
  bad.write(folder.file("bad.h5"));
  const auto dataset = std::make_shared<const TokenDataset>(std::span(&folder.path(), 1), 10);
  for (const std::int64_t prefetch : {0, 1, 4}) {
    LoaderOptions with;
    with.rows = Layout().shard(10, 1, 0);
    with.shuffle = false;
    with.prefetch = prefetch;
    Loader loader(dataset, with);
    EXPECT_EQ(loader.next().index, 0);  // what was read before the error is given first
    EXPECT_EQ(loader.next().index, 1);
    for (int again = 0; again < 2; ++again) {
      EXPECT_THAT(error_text([&] { loader.next(); }), mentions("offset 25"));
      EXPECT_EQ(loader.state().front().at, (StreamState{0, 2}));
    }
  }
}

TEST_F(LoaderTest, EndsWhileReadingAhead) {
  for (int i = 0; i < 50; ++i) {
    LoaderOptions with = options();
    with.prefetch = 1 + i % 5;
    Loader loader(dataset_, with);
    take(loader, i % 4);
  }
}

/// Readers that wait for one another: what each was told, and whether it left at once.
struct Others {
  std::vector<std::string> told;
  std::atomic<bool> at_once = false;
  RankRows rows(RankRows::Hold hold) {
    return {Layout().shard(10, 3, 1),
            std::move(hold),
            {.tell = [this](const std::string& why) { told.push_back(why); },
             .at_once = [this] { at_once = true; }}};
  }
};

TEST_F(LoaderTest, AReaderThatLeavesTellsTheOthers) {
  Others others;
  LoaderOptions with = options();
  with.shuffle = false;
  int held = 0;
  with.rows = others.rows([&](std::span<const std::int64_t>) -> std::shared_ptr<const HeldRows> {
    require(++held < 4, "no rows");
    return std::make_shared<HeldRows>(Layout().shard(10, 3, 1));
  });
  {
    Loader loader(dataset_, with);
    take(loader, 3);
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(error_text([&] { loader.next(); }), "sequence 3 of the data: no rows");
      EXPECT_THAT(others.told, testing::ElementsAre("sequence 3 of the data: no rows"))
          << "before next() throws";
    }
  }
  EXPECT_FALSE(others.at_once);

  others.told.clear();
  held = -1000;
  { Loader loader(dataset_, with); }
  EXPECT_THAT(others.told, testing::ElementsAre("its run has ended"));
  EXPECT_FALSE(others.at_once);
  EXPECT_THROW(
      {
        Loader loader(dataset_, with);
        fail("of this rank alone");
      },
      Error);
  EXPECT_TRUE(others.at_once);
}

TEST_F(LoaderTest, BadOptionsAreErrors) {
  const auto with = [&](auto spoil) {
    LoaderOptions bad = options();
    spoil(bad);
    return error_text([&] { Loader(dataset_, bad); });
  };
  EXPECT_THAT(with([](auto& o) { o.group = 1; }), mentions("group 1 of 1"));
  EXPECT_THAT(with([](auto& o) { o.groups = 0; }), mentions("group 0 of 0"));
  EXPECT_THAT(with([](auto& o) { o.prefetch = -1; }), mentions("prefetch", "-1"));
  EXPECT_THAT(with([](auto& o) { o.start = {{.at = {0, 20}}}; }), mentions("20"));
}

}  // namespace
}  // namespace annulus::data
