// Dilation as attentions of dilation classes, which the kernel hopper goes by, against the mask itself.
#include <gtest/gtest.h>

#include <annulus/attention/sequence/layout.hpp>

#include "attention/kernels/hopper/schedule/dilation_classes.hpp"

namespace annulus::test {
namespace {

using attention::hopper::dilation_classes;
using attention::hopper::DilationClasses;

const std::vector<Layout> layouts = {Layout(Layout::Kind::contiguous), Layout(Layout::Kind::zigzag),
                                     Layout(Layout::Kind::striped), Layout(Layout::Kind::block_striped, 6)};

std::int64_t class_of(const DilationClasses& classes, std::int64_t row) {
  return row % classes.count;
}

/// Every pair whose distance the dilation divides is a pair of classes that belong together, and no other is.
void check_pairs(const DilationClasses& classes, std::int64_t dilation, const PositionMap& queries,
                 const PositionMap& keys) {
  for (std::int64_t i = 0; i < queries.count; ++i) {
    for (std::int64_t j = 0; j < keys.count; ++j) {
      const bool divisible = (queries(i) - keys(j)) % dilation == 0;
      const bool together =
          classes.some && class_of(classes, j) == classes.keys_of(static_cast<int>(class_of(classes, i)));
      ASSERT_EQ(divisible, together) << i << ' ' << j;
    }
  }
}

TEST(DilationClasses, HoldThePairsThatDilationLeaves) {
  int found = 0, none = 0;
  for (const Layout& layout : layouts) {
    for (const int shards : {1, 2, 3}) {
      for (const std::int64_t tokens : {1, 7, 72, 101}) {
        for (const std::int64_t dilation : {2, 3, 4, 6, 9}) {
          for (int q = 0; q < shards; ++q) {
            for (int k = 0; k < shards; ++k) {
              const PositionMap queries = layout.shard(tokens, shards, q),
                                keys = layout.shard(tokens, shards, k);
              MaskRule mask{.tokens = tokens, .dilation = dilation};
              const auto classes = dilation_classes(mask, queries, keys);
              classes ? ++found : ++none;
              if (classes && !queries.empty() && !keys.empty())
                check_pairs(*classes, dilation, queries, keys);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(found, none) << "most layouts keep residues evenly spaced";
  EXPECT_GT(none, 0) << "zigzag chunks that the dilation does not divide do not";
}

TEST(DilationClasses, NumberTheRowsOfAShard) {
  for (const int count : {1, 2, 5, 16}) {
    const DilationClasses classes{count, 3 % count, true};
    for (const std::int64_t rows : {1, 4, 5, 31, 32}) {
      std::int64_t sum = 0;
      for (int dilation_class = 0; dilation_class < count; ++dilation_class) {
        const std::int64_t here = classes.rows(rows, dilation_class);
        sum += here;
        EXPECT_LE(here, classes.most_rows(rows));
        if (here > 0) {
          EXPECT_LT(classes.row(here - 1, dilation_class), rows);
        }
        EXPECT_GE(classes.row(here, dilation_class), rows);
        EXPECT_EQ(classes.queries_of(classes.keys_of(dilation_class)), dilation_class);
      }
      EXPECT_EQ(sum, rows);
    }
  }
}

TEST(DilationClasses, WithoutDilationThereIsOne) {
  const PositionMap rows = layouts[1].shard(100, 2, 0);
  const auto classes = dilation_classes(MaskRule{.tokens = 100}, rows, rows);
  ASSERT_TRUE(classes);
  EXPECT_EQ(classes->count, 1);
  EXPECT_TRUE(classes->some);
}

}  // namespace
}  // namespace annulus::test
