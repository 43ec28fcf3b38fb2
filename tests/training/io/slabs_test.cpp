#include "training/io/hdf5_files/hdf5.hpp"

#include <numeric>

#include "support/error_text.hpp"

namespace annulus::io {
namespace {

/// Index in row-major order of a slab's first element.
std::uint64_t offset_of(const Extents& extents, const Extents& start) {
  std::uint64_t offset = 0;
  for (std::size_t d = 0; d < extents.size(); ++d) offset = offset * extents[d] + start[d];
  return offset;
}

TEST(Slabs, CoverTheArrayInOrderWithoutGapsAndOverlaps) {
  for (const Extents& extents : std::vector<Extents>{{1}, {17}, {2, 3}, {2, 1, 5, 7}, {3, 4, 1, 1}, {1, 1}}) {
    const std::uint64_t all = std::accumulate(extents.begin(), extents.end(), 1ull, std::multiplies<>());
    for (const std::uint64_t limit : {1u, 2u, 5u, 6u, 7u, 35u, 36u, 1000u}) {
      std::uint64_t next = 0;
      for_slabs(extents, limit, [&](const Hyperslab& slab) {
        EXPECT_EQ(offset_of(extents, slab.start), next);
        EXPECT_LE(slab.elements(), limit);
        Extents last = slab.start;
        for (std::size_t d = 0; d < last.size(); ++d) last[d] += slab.count[d] - 1;
        EXPECT_EQ(offset_of(extents, last), next + slab.elements() - 1) << "one stretch";
        next += slab.elements();
      });
      EXPECT_EQ(next, all);
    }
  }
}

TEST(Slabs, AreAsLargeAsTheLimitAllows) {
  std::vector<std::uint64_t> sizes;
  for_slabs({2, 10, 3}, 14, [&](const Hyperslab& slab) { sizes.push_back(slab.elements()); });
  EXPECT_THAT(sizes, testing::ElementsAre(12, 12, 6, 12, 12, 6));
}

TEST(Slabs, OfNothingAndOfScalars) {
  for_slabs({4, 0}, 8, [](const Hyperslab&) { FAIL() << "nothing is there"; });
  EXPECT_THROW(for_slabs({}, 8, [](const Hyperslab&) {}), Error);
}

}  // namespace
}  // namespace annulus::io
