// Small texts of messages.
#include <gtest/gtest.h>

#include <array>
#include <string_view>
#include <utility>

#include "base/nearest.hpp"
#include "base/units.hpp"

namespace annulus {
namespace {

TEST(DurationText, HasTheUnitThatFits) {
  for (const auto& [seconds, text] :
       {std::pair(0.0, "0.000 ms"), std::pair(2.5e-5, "25.00 us"), std::pair(0.0999, "99.90 ms"),
        std::pair(1.0, "1.000 s"), std::pair(119.0, "119.0 s"), std::pair(120.0, "2.000 min"),
        std::pair(7200.0, "2.000 h"), std::pair(4.169e5, "4.825 d"), std::pair(1e9, "11574 d")})
    EXPECT_EQ(duration_text(seconds), text);
}

TEST(DidYouMean, NamesTheNearestOrNothing) {
  constexpr auto known = std::to_array<std::string_view>({"ring", "burst", "topology-burst"});
  EXPECT_EQ(did_you_mean("brust", known), "did you mean 'burst'? ");
  EXPECT_EQ(did_you_mean("ringg", known), "did you mean 'ring'? ");
  EXPECT_EQ(did_you_mean("zigzag", known), "");
  EXPECT_EQ(did_you_mean("", known), "");
  EXPECT_EQ(did_you_mean("ring", {}), "");
}

}  // namespace
}  // namespace annulus
