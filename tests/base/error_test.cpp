#include <annulus/base/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_text.hpp"

namespace annulus {
namespace {

TEST(Error, FailFormats) {
  EXPECT_EQ(error_text([] { fail("rank {} lacks '{}'", 3, "a.h5"); }), "rank 3 lacks 'a.h5'");
  EXPECT_THROW(fail("plain"), std::runtime_error);
}

TEST(Error, RequireThrowsUnlessTrue) {
  EXPECT_NO_THROW(require(true, "{}", 1));
  EXPECT_EQ(error_text([] { require(false, "{} > {}", 1, 2); }), "1 > 2");
}

/// Braces in arguments (file names, user text) are not formatted again.
TEST(Error, ArgumentsAreNotFormats) {
  EXPECT_EQ(error_text([] { fail("{}", std::string("{0}{}")); }), "{0}{}");
}

TEST(Error, AssertIsCheckedInDebugOnlyAndNamesThePlace) {
  int evaluated = 0;
  const auto holds = [&] {
    ++evaluated;
    return false;
  };
#if defined(ANNULUS_ENABLE_ASSERTS)
  const std::string text = error_text([&] { ANNULUS_ASSERT(holds()); });
  EXPECT_THAT(text, testing::HasSubstr("holds()"));
  EXPECT_THAT(text, testing::HasSubstr("error_test.cpp:"));
  EXPECT_EQ(evaluated, 1);
#else
  ANNULUS_ASSERT(holds());
  EXPECT_EQ(evaluated, 0);
  (void)holds;
#endif
  EXPECT_THAT(error_text([] { detail::assertion_failed("a == b", "plan.cpp", 7); }),
              testing::HasSubstr("a == b does not hold at plan.cpp:7"));
}

}  // namespace
}  // namespace annulus
