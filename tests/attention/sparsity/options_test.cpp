// The text of a selection, and its errors.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/sparsity/options.hpp>

#include "attention/sparsity/patterns/table.hpp"
#include "attention/sparsity/selection_memory.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

using sparsity::PatternOptions, sparsity::VerticalSlash;

VerticalSlash vertical_slash(const PatternOptions& options) {
  return std::get<VerticalSlash>(options.pattern().of);
}

TEST(SparsityOptions, AreReadAndWritten) {
  EXPECT_EQ(PatternOptions::parse("vertical-slash"), PatternOptions());
  const VerticalSlash recall = vertical_slash(PatternOptions::parse(
      "vertical-slash:recall=0.95,window=32,sinks=4,local=64,select=heads,dense-below=500"));
  EXPECT_EQ(recall.recall, 0.95);
  EXPECT_EQ(recall.window, 32);
  EXPECT_EQ(recall.sinks, 4);
  EXPECT_EQ(recall.local, 64);
  EXPECT_TRUE(recall.of_query_heads);
  EXPECT_EQ(recall.dense_below, 500);
  EXPECT_FALSE(recall.fixed());
  const VerticalSlash fixed = vertical_slash(PatternOptions::parse("vertical-slash:verticals=100,slashes=3"));
  EXPECT_TRUE(fixed.fixed());
  EXPECT_EQ(fixed.verticals, 100);
  EXPECT_EQ(fixed.slashes, 3);
  const PatternOptions joint = PatternOptions::parse("vertical-slash:budget=joint,recall=0.5");
  EXPECT_TRUE(vertical_slash(joint).joint);
  EXPECT_NE(joint, PatternOptions::parse("vertical-slash:budget=separate,recall=0.5"));
  for (const VerticalSlash& pattern : {VerticalSlash(), recall, fixed, vertical_slash(joint)}) {
    const PatternOptions options = PatternOptions::parse(pattern.to_string());
    EXPECT_EQ(vertical_slash(options), pattern);
    EXPECT_EQ(options.to_string(), pattern.to_string());
  }
}

TEST(SparsityOptions, LocalKeysTakeTheBlocksThatMayHoldThem) {
  const auto slashes = [](std::int64_t local) {
    VerticalSlash options;
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
  const auto error = [](const std::string& text) {
    return error_text([&] { (void)PatternOptions::parse(text, "attention.sparsity"); });
  };
  EXPECT_THAT(error("diagonal"), mentions("attention.sparsity = 'diagonal'", VerticalSlash::example));
  for (const auto& [text, says] :
       {std::pair("vertical-slash:recall=1.5", "'recall=1.5'"),
        {"vertical-slash:recall=0", "'recall=0'"},
        {"vertical-slash:window=0", "'window=0'"},
        {"vertical-slash:width=3", "'width=3'"},
        {"vertical-slash:window=3,window=4", "'window=4' stands twice"},
        {"vertical-slash:verticals=3", "verticals but not the slashes"},
        {"vertical-slash:recall=0.5,verticals=3,slashes=1", "one of the two"},
        {"vertical-slash:budget=both", "'budget=both'"},
        {"vertical-slash:budget=joint,verticals=3,slashes=1", "give a recall in their place"},
        {"vertical-slash:select=all", "'select=all'"},
        {"xattention:block=100", "'block=100' needs a multiple of 64"},
        {"xattention:block=32", "needs a multiple of 64 from 64 up to 65536"},
        {"xattention:block=131072", "up to 65536"},
        {"xattention:stride=0", "'stride=0'"},
        {"xattention:stride=48", "stride=48 do not divide blocks of block=128"},
        {"xattention:threshold=0", "'threshold=0' needs a share"},
        {"xattention:threshold=nan", "'threshold=nan'"},
        {"xattention:threshold=1.1", "'threshold=1.1'"},
        {"xattention:stride=8,stride=8", "'stride=8' stands twice"},
        {"xattention:recall=0.9", "known are block, stride, threshold, select and dense-below"},
        {"xattention:", "the part ''"},
        {"moba:block=100", "'block=100' needs a multiple of 64"},
        {"moba:block=0", "'block=0'"},
        {"moba:top=0", "'top=0' needs a whole number from 1"},
        {"moba:top=3,top=4", "'top=4' stands twice"},
        {"moba:select=heads", "known are block, top and dense-below"},
        {"moba:", "the part ''"},
        {"moba:dense-below=-1", "'dense-below=-1'"},
        {"xattention:select=all", "'select=all'"},
        {"xattention:dense-below=x", "'dense-below=x' needs a whole number"},
        {"infllm-v2:", "the part ''"},
        {"infllm-v2:top=-1", "'top=-1' needs a whole number from 0"},
        {"infllm-v2:top=1,top=1", "'top=1' stands twice"},
        {"infllm-v2:window", "the part 'window'"},
        {"infllm-v2:block=100", "'block=100' needs a multiple of 64"},
        {"infllm-v2:stride=48", "stride=48 does not divide blocks of block=64"},
        {"infllm-v2:stride=0", "'stride=0'"},
        {"infllm-v2:window=0", "'window=0' needs a whole number from 1"},
        {"infllm-v2:sinks=-1", "'sinks=-1'"},
        {"infllm-v2:topk=3", "known are block, top, sinks, window, stride and dense-below"}})
    EXPECT_THAT(error(text), mentions(std::string("attention.sparsity = '") + text, says));
}

TEST(SparsityOptions, OfXAttentionAreReadAndWritten) {
  const PatternOptions plain = PatternOptions::parse("xattention");
  EXPECT_EQ(plain, PatternOptions::parse("xattention:block=128,stride=16,threshold=0.9,select=heads"));
  EXPECT_NE(plain, PatternOptions());
  for (const char* text : {"xattention:block=256,stride=8,threshold=0.5", "xattention:select=kv-heads"}) {
    const PatternOptions options = PatternOptions::parse(text);
    EXPECT_NE(options, plain);
    EXPECT_EQ(PatternOptions::parse(options.to_string()), options);
  }
}

TEST(SparsityOptions, OfMobaAreReadAndWritten) {
  const PatternOptions plain = PatternOptions::parse("moba");
  EXPECT_EQ(plain, PatternOptions::parse("moba:block=512,top=3"));
  EXPECT_NE(plain, PatternOptions());
  const PatternOptions options = PatternOptions::parse("moba:top=12,block=4096");
  EXPECT_NE(options, plain);
  EXPECT_EQ(options.to_string(), "moba:block=4096,top=12");
  EXPECT_EQ(PatternOptions::parse(options.to_string()), options);
  EXPECT_NEAR(sparsity::predicted_density(options, 524288), 0.1716, 1e-4);
  EXPECT_EQ(sparsity::predicted_density(options, 12 * 4096), 1);
}

TEST(SparsityOptions, OfInfLlmV2AreReadAndWritten) {
  const PatternOptions plain = PatternOptions::parse("infllm-v2");
  EXPECT_EQ(plain.to_string(), "infllm-v2:block=64,top=31,sinks=64,window=2048,stride=16");
  EXPECT_EQ(PatternOptions::parse(plain.to_string()), plain);
  EXPECT_NE(plain, PatternOptions::parse("infllm-v2:sinks=0"));
  // Queries of the last block of 8192 tokens: 63 or 64 blocks and a half, of 127 and a half.
  EXPECT_NEAR(sparsity::predicted_density(plain, 8192), 0.75, 0.01);
  EXPECT_EQ(sparsity::predicted_density(plain, 4096), 1);
}

TEST(SparsityOptions, DensityIsThatOfTheQueriesOneByOne) {
  for (const char* text :
       {"moba:block=64,top=2", "moba:block=128,top=1,dense-below=900", "infllm-v2:block=64,top=1,window=70",
        "infllm-v2:block=64,top=0,sinks=0,window=1", "infllm-v2:block=64,top=1,sinks=100,window=5000"}) {
    for (const std::int64_t tokens : {1, 63, 128, 777, 1024}) {
      const sparsity::TopBlocks of = *sparsity::top_blocks(PatternOptions::parse(text), tokens);
      double pairs = 0;
      for (std::int64_t query = 0; query < tokens; ++query) {
        const std::int64_t candidates = of.candidates({0, tokens}, query).count();
        pairs += static_cast<double>(query + 1 - std::max<std::int64_t>(0, candidates - of.best) * of.block);
      }
      EXPECT_EQ(of.density(), pairs / (0.5 * static_cast<double>(tokens * (tokens + 1))))
          << text << ", " << tokens;
    }
  }
}

// docs/sparsity.md, "Equal density at any length".
TEST(SparsityOptions, OfEqualDensityAreSharesOfTheSequence) {
  for (const std::int64_t tokens : {32768, 131072, 524288}) {
    const auto density = [&](const std::string& text) {
      return sparsity::predicted_density(PatternOptions::parse(text), tokens);
    };
    EXPECT_NEAR(density(fmt::format("moba:block={},top=3", tokens / 64)), 0.0767, 1e-4);
    EXPECT_NEAR(density(fmt::format("moba:block={},top=4", tokens / 64)), 0.1065, 1e-4);
    EXPECT_NEAR(density(fmt::format("moba:block={},top=12", tokens / 128)), 0.1716, 1e-4);
    EXPECT_NEAR(
        density(fmt::format("infllm-v2:block={0},top=15,sinks={0},window={1}", tokens / 512, tokens / 64)),
        0.0934, 1e-4);
    EXPECT_NEAR(density(fmt::format("vertical-slash:verticals={},slashes={}", tokens / 128, tokens / 2048)),
                0.068, 1.1e-3);
  }
  for (const auto& [tokens, moba, infllm] :
       {std::tuple{32768, 0.077, 0.236}, {131072, 0.019, 0.062}, {524288, 0.005, 0.016}}) {
    EXPECT_NEAR(sparsity::predicted_density(PatternOptions::parse("moba"), tokens), moba, 5e-4);
    EXPECT_NEAR(sparsity::predicted_density(PatternOptions::parse("infllm-v2"), tokens), infllm, 5e-4);
  }
}

TEST(SparsityOptions, TakeAllPairsOfDocumentsThatAreShort) {
  const auto density = [](const char* text, std::int64_t tokens) {
    return sparsity::predicted_density(PatternOptions::parse(text), tokens);
  };
  EXPECT_EQ(density("vertical-slash:verticals=100,slashes=1", 100), 1);
  EXPECT_EQ(density("vertical-slash:verticals=100,slashes=1", 90), 1);
  EXPECT_EQ(density("xattention", 128), 1);
  EXPECT_EQ(density("moba", 512), 1);
  const std::int64_t starts[] = {0, 90, 180};
  EXPECT_EQ(sparsity::predicted_density(PatternOptions::parse("vertical-slash:verticals=100,slashes=1"), 270,
                                        starts),
            1);
}

TEST(SparsityOptions, OfFixedNumbersHaveColumnsInEachDocument) {
  const auto columns = [](std::int64_t verticals, bool packed) {
    const std::string text = fmt::format("vertical-slash:verticals={},slashes=1", verticals);
    const PatternOptions options = PatternOptions::parse(text);
    const std::int64_t of_tables = sparsity::selection_form(options, 8192, packed).columns;
    // K, V, dK and dV in f32.
    EXPECT_EQ(
        sparsity::selection_memory(options, {.tokens = 8192, .rows = 8192, .packed = packed}).communication,
        of_tables * 64 * 4 * 4);
    return of_tables;
  };
  EXPECT_EQ(columns(40, false), 40);
  EXPECT_EQ(columns(40, true), 820) << "a tenth";
  EXPECT_EQ(columns(5000, true), 5000);
  EXPECT_EQ(columns(0, true), 0);
}

TEST(SparsityOptions, SayWhatASequenceHasNot) {
  const auto impossible = [](const std::string& options) {
    return error_text([&] { PatternOptions::parse("vertical-slash:" + options).check(130); });
  };
  for (const auto& [options, names] :
       {std::pair("window=131", "131 queries"),
        {"verticals=131,slashes=1", "use verticals=130 or less"},
        {"verticals=1,slashes=4", "use slashes=3 or less"},
        {"verticals=1,slashes=1,sinks=2", "2 sinks"},
        {"verticals=1,slashes=1,local=2", "take 2 of 1 slashes: use slashes=2 or more"},
        {"verticals=1,slashes=3,window=130", "no error"}})
    EXPECT_THAT(impossible(options), mentions(names));
}

// Whoever does what the errors say is done after each of them: no two lead to each other.
TEST(SparsityOptions, ErrorsLeadToOptionsThatASequenceHas) {
  static const std::regex advice("use ([a-z]+)=([0-9]+)");
  int wrong = 0;
  const auto follow = [&](std::int64_t tokens, bool packed, std::map<std::string, std::string> keys) {
    std::string errors;
    for (int step = 0; step < 6; ++step) {
      std::vector<std::string> parts;
      for (const auto& [key, value] : keys) parts.push_back(key + "=" + value);
      const std::string text = fmt::format("vertical-slash:{}", fmt::join(parts, ","));
      const std::string error =
          error_text([&] { PatternOptions::parse(text).check(tokens, "sparsity", packed); });
      if (error == "no error") return std::string();
      ++wrong;
      errors += error + "\n";
      std::smatch found;
      if (!std::regex_search(error, found, advice)) return errors;
      keys[found[1]] = found[2];
    }
    return errors;
  };
  for (const std::int64_t tokens : {1, 17, 64, 65, 130})
    for (const char* local : {"0", "1", "17", "66", "1000"})
      for (const char* sinks : {"0", "30", "2000"})
        for (const char* verticals : {"0", "17", "131"})
          for (const char* slashes : {"0", "1", "4"})
            for (const char* window : {"1", "200"})
              for (const bool packed : {false, true})
                EXPECT_EQ(follow(tokens, packed,
                                 {{"local", local},
                                  {"sinks", sinks},
                                  {"verticals", verticals},
                                  {"slashes", slashes},
                                  {"window", window}}),
                          "");
  EXPECT_GT(wrong, 100);
}

// Sinks and local keys are those that a sequence has.
TEST(SparsityOptions, AskForNoMoreThanASequenceHas) {
  for (const char* text : {"verticals=0,slashes=1,local=17", "verticals=17,slashes=0,local=0,sinks=64"})
    EXPECT_NO_THROW(PatternOptions::parse(fmt::format("vertical-slash:{},window=1", text)).check(17));
}

}  // namespace
}  // namespace annulus::test
