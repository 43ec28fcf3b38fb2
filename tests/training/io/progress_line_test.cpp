#include <gtest/gtest.h>

#include "training/io/progress_line.hpp"

namespace annulus::io {
namespace {

TEST(ProgressLine, SaysBytesRateAndTimeLeft) {
  EXPECT_EQ(ProgressLine::text("loading a", 12'300'000'000, 40'600'000'000, 10.0),
            "loading a: 12.30 of 40.60 GB, 1.23 GB/s, 23 s left");
  EXPECT_EQ(ProgressLine::text("a", 1'000'000'000, 601'000'000'000, 1.0),
            "a: 1.00 of 601.00 GB, 1.00 GB/s, 10 min left");
  EXPECT_EQ(ProgressLine::text("a", 0, 1'000'000'000, 1.0),
            "a: 0.00 of 1.00 GB, 0.00 GB/s, unknown time left");
}

}  // namespace
}  // namespace annulus::io
