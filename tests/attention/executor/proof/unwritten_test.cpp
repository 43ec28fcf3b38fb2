// Which results local calls may write without reading them, and which are cleared for whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "attention/executor/proof/unwritten.hpp"

namespace annulus::test {
namespace {

using executor::StridedBlock;
using executor::Unwritten;

constexpr int heads = 6, rows = 10, width = 4;

/// A part of an array of 6 heads and 10 rows.
StridedBlock part(int head, int head_end, int row, int row_end, plan::Tensor tensor = plan::Tensor::dq) {
  StridedBlock block;
  block.tensor = tensor;
  block.slot = 1;
  block.batch = 1;
  block.heads = head_end - head;
  block.rows = row_end - row;
  block.width = width;
  block.head_stride = rows * width;
  block.batch_stride = heads * rows * width;
  block.offset = head * block.head_stride + row * width;
  return block;
}
const StridedBlock whole = part(0, heads, 0, rows);

TEST(Unwritten, TheFirstToWriteAPartNeedsNoZeros) {
  std::vector<StridedBlock> cleared;
  Unwritten unwritten([&](const StridedBlock& block) { cleared.push_back(block); });
  unwritten.add(whole);
  EXPECT_TRUE(unwritten.take(part(0, 2, 0, 10)));
  EXPECT_TRUE(unwritten.take(part(2, 6, 5, 10)));
  EXPECT_FALSE(unwritten.take(part(0, 2, 0, 10))) << "written before";
  EXPECT_THAT(cleared, testing::IsEmpty());
  EXPECT_FALSE(unwritten.take(part(1, 3, 0, 10))) << "written in part";
  EXPECT_THAT(cleared, testing::ElementsAre(part(2, 6, 0, 5))) << "what was unwritten of it and around it";
  unwritten.settle_all();
  EXPECT_EQ(cleared.size(), 1u);
}

TEST(Unwritten, WhoeverElseTouchesAPartFindsZeros) {
  std::vector<StridedBlock> cleared;
  Unwritten unwritten([&](const StridedBlock& block) { cleared.push_back(block); });
  unwritten.add(whole);
  unwritten.settle(part(0, heads, 0, rows, plan::Tensor::dk));
  EXPECT_THAT(cleared, testing::IsEmpty()) << "another tensor";
  unwritten.settle(part(5, 6, 9, 10));
  EXPECT_THAT(cleared, testing::ElementsAre(whole));
  EXPECT_FALSE(unwritten.take(part(0, 1, 0, 1)));

  // A slot that holds another array now: rows of another length.
  unwritten.add(whole);
  StridedBlock other = part(0, 1, 0, 1);
  other.head_stride = 8;
  unwritten.add(other);
  EXPECT_THAT(cleared, testing::ElementsAre(whole, whole));
  EXPECT_TRUE(unwritten.take(other));
}

// Adds at random, on an array that starts as garbage, end as on one that was cleared.
TEST(Unwritten, RandomPartsAddUp) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> values(heads * rows * width, 1000), expected(values.size(), 0);
    const auto each = [](const StridedBlock& block, std::vector<int>& array, const auto& action) {
      for (std::int64_t h = 0; h < block.heads; ++h)
        for (std::int64_t i = 0; i < block.run(); ++i)
          action(array[static_cast<std::size_t>(block.offset + h * block.head_stride + i)]);
    };
    Unwritten unwritten([&](const StridedBlock& block) { each(block, values, [](int& x) { x = 0; }); });
    unwritten.add(whole);
    for (int i = 0; i < 6; ++i) {
      const int a = static_cast<int>(random() % heads), b = static_cast<int>(random() % rows);
      const StridedBlock block =
          part(a, a + 1 + static_cast<int>(random() % static_cast<unsigned>(heads - a)), b,
               b + 1 + static_cast<int>(random() % static_cast<unsigned>(rows - b)));
      if (unwritten.take(block)) each(block, values, [](int& x) { x = 0; });
      each(block, values, [&](int& x) { x += i + 1; });
      each(block, expected, [&](int& x) { x += i + 1; });
    }
    unwritten.settle_all();
    EXPECT_EQ(values, expected);
  }
}

}  // namespace
}  // namespace annulus::test
