#include <gtest/gtest.h>

#include <array>

#include "base/kokkos/range.hpp"
#include "support/exec.hpp"

namespace annulus {
namespace {

using test::TestExec;
using Seen = Kokkos::View<std::int64_t[4], TestExec>;

// Indices around 2^32 arrive as they are, without an array of that size.
Seen indices_from(std::int64_t first) {
  const TestExec exec;
  const Seen seen("annulus::test::seen");
  Kokkos::parallel_for(
      "annulus::test::range", ElementRange<TestExec>(exec, first, first + 4),
      KOKKOS_LAMBDA(const std::int64_t i) { seen(i - first) = i; });
  exec.fence("annulus::test: indices are there");
  return seen;
}

TEST(ElementRange, CountsBeyond32Bits) {
  static_assert(std::is_same_v<ElementRange<TestExec>::index_type, std::int64_t>);
  for (const std::int64_t first : std::array<std::int64_t, 3>{0, (1ll << 31) - 2, (1ll << 32) - 2}) {
    const auto seen = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), indices_from(first));
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(seen(i), first + static_cast<std::int64_t>(i));
  }
}

}  // namespace
}  // namespace annulus
