// The text of a selection, and its errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <annulus/base/error.hpp>
#include <annulus/sparsity/options.hpp>

#include "support/error_text.hpp"

namespace annulus::test {
namespace {

using sparsity::Options;

TEST(SparsityOptions, AreReadAndWritten) {
  EXPECT_EQ(Options::parse("vertical-slash"), Options());
  const Options recall = Options::parse("vertical-slash:recall=0.95,window=32,sinks=4,local=64,select=heads");
  EXPECT_EQ(recall.recall, 0.95);
  EXPECT_EQ(recall.window, 32);
  EXPECT_EQ(recall.sinks, 4);
  EXPECT_EQ(recall.local, 64);
  EXPECT_TRUE(recall.of_query_heads);
  EXPECT_FALSE(recall.fixed());
  const Options fixed = Options::parse("vertical-slash:verticals=100,slashes=3");
  EXPECT_TRUE(fixed.fixed());
  EXPECT_EQ(fixed.verticals, 100);
  EXPECT_EQ(fixed.slashes, 3);
  const Options joint = Options::parse("vertical-slash:budget=joint,recall=0.5");
  EXPECT_TRUE(joint.joint);
  EXPECT_NE(joint, Options::parse("vertical-slash:budget=separate,recall=0.5"));
  for (const Options& options : {Options(), recall, fixed, joint})
    EXPECT_EQ(Options::parse(options.to_string()), options);
}

TEST(SparsityOptions, LocalKeysTakeTheBlocksThatMayHoldThem) {
  const auto slashes = [](std::int64_t local) {
    Options options;
    options.local = local;
    return options.local_slashes();
  };
  EXPECT_EQ(slashes(0), 0);
  EXPECT_EQ(slashes(1), 1);
  EXPECT_EQ(slashes(2), 2);
  EXPECT_EQ(slashes(65), 2);
  EXPECT_EQ(slashes(66), 3);
}

TEST(SparsityOptions, SayWhatIsWrong) {
  const auto error = [](const char* text) {
    return error_text([&] { (void)Options::parse(text, "attention.sparsity"); });
  };
  EXPECT_THAT(error("xattention"), testing::HasSubstr("attention.sparsity = 'xattention'"));
  EXPECT_THAT(error("vertical-slash:recall=1.5"), testing::HasSubstr("'recall=1.5' needs a share"));
  EXPECT_THAT(error("vertical-slash:recall=0"), testing::HasSubstr("more than 0 and at most 1"));
  EXPECT_THAT(error("vertical-slash:window=0"), testing::HasSubstr("'window=0'"));
  EXPECT_THAT(error("vertical-slash:width=3"), testing::HasSubstr("'width=3' is unknown; known are recall"));
  EXPECT_THAT(error("vertical-slash:window=3,window=4"), testing::HasSubstr("stands twice"));
  EXPECT_THAT(error("vertical-slash:verticals=3"), testing::HasSubstr("but not the slashes"));
  EXPECT_THAT(error("vertical-slash:recall=0.5,verticals=3,slashes=1"), testing::HasSubstr("one of the two"));
  EXPECT_THAT(error("vertical-slash:budget=both"), testing::HasSubstr("budget=separate or budget=joint"));
  EXPECT_THAT(error("vertical-slash:budget=joint,verticals=3,slashes=1"),
              testing::HasSubstr("budget=joint shares a recall"));
  EXPECT_THAT(error("vertical-slash:select=all"), testing::HasSubstr("select=kv-heads or select=heads"));
  const auto impossible = [](const char* text) {
    return error_text([&] { Options::parse(text).check(130); });
  };
  EXPECT_THAT(impossible("vertical-slash:window=131"), testing::HasSubstr("longer than the sequence"));
  EXPECT_THAT(impossible("vertical-slash:verticals=131,slashes=1"), testing::HasSubstr("use 130 or less"));
  EXPECT_THAT(impossible("vertical-slash:verticals=1,slashes=4"),
              testing::HasSubstr("use slashes=3 or less"));
  EXPECT_THAT(impossible("vertical-slash:verticals=1,slashes=1,sinks=2"), testing::HasSubstr("2 sinks"));
  EXPECT_THAT(impossible("vertical-slash:verticals=1,slashes=1,local=2"),
              testing::HasSubstr("take 2 slashes"));
  EXPECT_EQ(impossible("vertical-slash:verticals=1,slashes=3,window=130"), "no error");
}

}  // namespace
}  // namespace annulus::test
