#include <gtest/gtest.h>

#include <annulus/base/error.hpp>

#include "training/parameter_sharding/partition.hpp"

namespace annulus::parameter_sharding {
namespace {

constexpr std::array<model::ParameterUnit, 3> units = {{{0, 100}, {100, 107}, {107, 235}}};

TEST(Partition, PartsCoverEachUnitInOrder) {
  for (const int ranks : {1, 2, 3, 7}) {
    for (const std::int64_t block : {1, 8, 64}) {
      const Partition partition(units, ranks, block);
      std::int64_t shard = 0;
      for (int unit = 0; unit < 3; ++unit) {
        const model::ParameterUnit& whole = units[static_cast<std::size_t>(unit)];
        std::int64_t end = whole.begin;
        for (int rank = 0; rank < ranks; ++rank) {
          const model::ParameterUnit part = partition.part(unit, rank);
          EXPECT_EQ(part.begin, end);
          EXPECT_LE(part.size(), partition.part_size(unit));
          // All but the last part with elements are full, so blocks are cut by no part.
          EXPECT_TRUE(part.end == whole.end || part.size() == partition.part_size(unit));
          end = part.end;
        }
        EXPECT_EQ(end, whole.end);
        EXPECT_EQ(partition.part_size(unit) % block, 0);
        EXPECT_LT(partition.padded_size(unit) - whole.size(), ranks * block);
        EXPECT_EQ(partition.offset_in_shard(unit), shard);
        EXPECT_EQ(partition.padded_offset(unit), ranks * shard);
        shard += partition.part_size(unit);
      }
      EXPECT_EQ(partition.shard_size(), shard);
      EXPECT_EQ(partition.padded_size(), ranks * shard);
    }
  }
}

TEST(Partition, RanksAndBlockMustBePositive) {
  EXPECT_THROW(Partition(units, 0, 8), Error);
  EXPECT_THROW(Partition(units, 2, 0), Error);
}

}  // namespace
}  // namespace annulus::parameter_sharding
