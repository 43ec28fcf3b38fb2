
#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/error_text.hpp"
#include "training/data/order.hpp"

namespace annulus::data {
namespace {

std::vector<std::int64_t> values(const Permutation& permutation, std::int64_t size) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < size; ++i) all.push_back(permutation(i));
  return all;
}

TEST(Permutation, IsOneForEverySize) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 100, 255, 256, 257, 1000, 4097}) {
    for (const std::uint64_t key : {0u, 1u, 77u}) {
      std::vector<std::int64_t> all = values(Permutation(size, key), size), expected(all.size());
      std::sort(all.begin(), all.end());
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(all, expected) << size;
    }
  }
}

TEST(Permutation, IsTheSameOnEveryMachine) {
  // A resumed run must find the order it left; these numbers are part of the checkpoints' meaning.
  EXPECT_THAT(values(Permutation(10, 42), 10), testing::ElementsAre(4, 6, 1, 3, 0, 9, 5, 8, 7, 2));
}

TEST(Permutation, ShufflesWell) {
  // Over many keys each position takes each value equally often: χ² of 16 × 16 counts, 225 degrees of
  // freedom, has mean 225 and deviation 21.
  constexpr int size = 16, keys = 4000;
  std::vector<double> counts(size * size);
  for (int key = 0; key < keys; ++key) {
    const Permutation permutation(size, static_cast<std::uint64_t>(key));
    for (int i = 0; i < size; ++i) ++counts[i * size + permutation(i)];
  }
  double chi2 = 0;
  for (const double count : counts) chi2 += std::pow(count - keys / double(size), 2) / (keys / double(size));
  EXPECT_LT(chi2, 225 + 5 * 21);
  EXPECT_GT(chi2, 225 - 5 * 21);
}

TEST(Permutation, OfManyElementsTakesNoMemory) {
  const Permutation permutation(std::int64_t{1} << 40, 5);
  EXPECT_LT(permutation(12345), std::int64_t{1} << 40);
  EXPECT_NE(permutation(0), permutation(1));
}

TEST(SequenceOrder, ReadsEverySequenceOnceAnEpoch) {
  const SequenceOrder order(7, 1, true);
  std::vector<std::vector<std::int64_t>> epochs(3);
  StreamState state;
  for (int i = 0; i < 21; ++i) {
    epochs[static_cast<std::size_t>(state.epoch)].push_back(order(state));
    state = order.advance(state, 1);
  }
  EXPECT_EQ(state, (StreamState{3, 0}));
  EXPECT_NE(epochs[0], epochs[1]);
  for (auto& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    EXPECT_THAT(epoch, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6));
  }
}

TEST(SequenceOrder, AdvancesOverEpochs) {
  const SequenceOrder order(3, 1, false);
  EXPECT_EQ(order.advance({0, 2}, 1), (StreamState{1, 0}));
  EXPECT_EQ(order.advance({1, 1}, 10), (StreamState{4, 2}));
  EXPECT_EQ(order({4, 2}), 2);
}

TEST(SequenceOrder, StateOfOtherDataIsAnError) {
  const SequenceOrder order(3, 1, true);
  for (const StreamState state : {StreamState{0, 3}, {-1, 0}})
    EXPECT_THAT(error_text([&] { order.advance(state, 1); }),
                mentions(fmt::format("sequence {} of epoch {}", state.index, state.epoch)));
}

TEST(Deal, EveryGroupHasAsManySequencesAndNearlyAsMuchWork) {
  EXPECT_EQ(deal(std::vector<std::int64_t>{1, 9, 5, 5, 1, 3}, 2), (std::vector<int>{1, 0, 1, 1, 0, 0}));
  EXPECT_EQ(deal(std::vector<std::int64_t>{4, 4, 4, 4}, 2), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(deal(std::vector<std::int64_t>{}, 3), std::vector<int>());
  EXPECT_THAT(error_text([] { (void)deal(std::vector<std::int64_t>(5), 2); }),
              testing::HasSubstr("multiple"));
  std::vector<std::int64_t> work;
  for (int i = 0; i < 64; ++i) work.push_back(i * i % 37 * 1000 + i);
  const std::vector<int> group_of = deal(work, 4);
  std::vector<std::int64_t> sums(4), counts(4);
  for (std::size_t i = 0; i < work.size(); ++i) {
    sums[static_cast<std::size_t>(group_of[i])] += work[i];
    ++counts[static_cast<std::size_t>(group_of[i])];
  }
  EXPECT_EQ(counts, std::vector<std::int64_t>(4, 16));
  EXPECT_LT(double(std::ranges::max(sums)), 1.01 * double(std::ranges::min(sums)));
}

}  // namespace
}  // namespace annulus::data
