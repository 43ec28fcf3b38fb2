
#include <cmath>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/mask.hpp>

#include "support/error_text.hpp"
#include "support/exec.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops_support.hpp"
#include "training/model/small_config.hpp"

namespace annulus::model {
namespace {

// Expected numbers come from the published formulas in decimal arithmetic of 50 digits, rounded to float
// after each operation, as transformers computes.
using Expected = std::vector<std::pair<std::size_t, float>>;

void expect_frequencies(const RopeFrequencies& frequencies, const Expected& expected) {
  for (const auto& [i, value] : expected) EXPECT_EQ(frequencies.inverse.at(i), value) << "dimension " << i;
}

TEST(RopeFrequencies, WithoutScaling) {
  const RopeFrequencies frequencies = rope_frequencies(10000, 128, {});
  EXPECT_EQ(frequencies.inverse.size(), 64u);
  EXPECT_EQ(frequencies.attention_factor, 1);
  expect_frequencies(
      frequencies,
      {{0, 1.0f}, {1, 0x1.bb5faep-1f}, {7, 0x1.75f036p-2f}, {31, 0x1.7a6622p-7f}, {63, 0x1.e459c4p-14f}});
  expect_frequencies(rope_frequencies(500000, 96, {}), {{1, 0x1.8587cap-1f},
                                                        {5, 0x1.050294p-2f},
                                                        {17, 0x1.3a1904p-7f},
                                                        {31, 0x1.b59152p-13f},
                                                        {47, 0x1.60d510p-19f}});
}

TEST(RopeFrequencies, Linear) {
  const RopeFrequencies frequencies = rope_frequencies(1e6, 96, {.name = "linear", .factor = 3});
  EXPECT_EQ(frequencies.attention_factor, 1);
  expect_frequencies(frequencies, {{0, 0x1.555556p-2f},
                                   {1, 0x1.ffed82p-3f},
                                   {5, 0x1.43c586p-4f},
                                   {17, 0x1.47a242p-9f},
                                   {31, 0x1.74e136p-15f},
                                   {47, 0x1.dd4928p-22f}});
}

TEST(RopeFrequencies, OfLlama31And32) {
  const RopeFrequencies big =
      rope_frequencies(500000, 128, {.name = "llama3", .factor = 8, .original_length = 8192});
  EXPECT_EQ(big.attention_factor, 1);
  expect_frequencies(big, {{0, 1.0f},
                           {7, 0x1.e788c2p-3f},
                           {24, 0x1.ddee9ep-8f},
                           {28, 0x1.a4ee40p-9f},
                           {29, 0x1.1bfa0cp-9f},
                           {30, 0x1.67a23ap-10f},
                           {31, 0x1.c12f3cp-11f},
                           {32, 0x1.132ba4p-11f},
                           {34, 0x1.765ba4p-13f},
                           {35, 0x1.90d10cp-14f},
                           {36, 0x1.46831ap-14f},
                           {63, 0x1.4985fep-22f}});
  const RopeFrequencies small =
      rope_frequencies(500000, 64, {.name = "llama3", .factor = 32, .original_length = 8192});
  expect_frequencies(small, {{1, 0x1.53c38cp-1f},
                             {14, 0x1.a4ee40p-9f},
                             {15, 0x1.524f36p-10f},
                             {16, 0x1.c26c40p-12f},
                             {17, 0x1.9731eep-14f},
                             {18, 0x1.46831ap-16f},
                             {31, 0x1.948360p-24f}});
}

const RopeScaling qwen_to_a_million{.name = "yarn", .factor = 32, .original_length = 32768};

TEST(RopeFrequencies, Yarn) {
  const RopeFrequencies qwen = rope_frequencies(1e6, 128, qwen_to_a_million);
  EXPECT_DOUBLE_EQ(qwen.attention_factor, 1.3465735902799726547);
  expect_frequencies(qwen, {{0, 1.0f},
                            {16, 0x1.030dc6p-5f},
                            {23, 0x1.c9548cp-8f},
                            {24, 0x1.5b88eep-8f},
                            {28, 0x1.bc84f2p-10f},
                            {32, 0x1.fecb98p-12f},
                            {38, 0x1.4d9808p-15f},
                            {39, 0x1.46ac18p-16f},
                            {40, 0x1.74eea6p-18f},
                            {41, 0x1.2c8648p-18f},
                            {63, 0x1.4d1c98p-25f}});
  const RopeFrequencies other = rope_frequencies(
      10000, 96, {.name = "yarn", .factor = 16, .original_length = 4096, .attention_factor = 1.25});
  EXPECT_EQ(other.attention_factor, 1.25);
  expect_frequencies(other, {{1, 0x1.a69b60p-1f},
                             {15, 0x1.ccab84p-5f},
                             {17, 0x1.1ae0f6p-5f},
                             {20, 0x1.09e5e8p-6f},
                             {26, 0x1.984e02p-9f},
                             {30, 0x1.aed8eap-11f},
                             {47, 0x1.fc26c6p-18f}});
}

// gpt-oss' own: the ramp goes from dimension 8.09 to 17.40.
TEST(RopeFrequencies, YarnBetweenDimensions) {
  const RopeScaling gpt_oss{.name = "yarn", .factor = 32, .original_length = 4096, .truncate = false};
  const RopeFrequencies frequencies = rope_frequencies(150000, 64, gpt_oss);
  EXPECT_DOUBLE_EQ(frequencies.attention_factor, 1.3465735902799726547);
  expect_frequencies(frequencies, {{0, 0x1.000000p+0f},
                                   {1, 0x1.60ca6ap-1f},
                                   {7, 0x1.2e0ec8p-4f},
                                   {8, 0x1.a04328p-5f},
                                   {9, 0x1.03bbaap-5f},
                                   {10, 0x1.3cc8e0p-6f},
                                   {12, 0x1.bd5080p-8f},
                                   {14, 0x1.127006p-9f},
                                   {16, 0x1.dea878p-12f},
                                   {17, 0x1.0f3372p-13f},
                                   {18, 0x1.415b8cp-15f},
                                   {31, 0x1.44a5a6p-22f}});
  RopeScaling whole = gpt_oss;
  whole.truncate = true;
  EXPECT_NE(rope_frequencies(150000, 64, whole), frequencies);
}

TEST(RopeTable, IsExactForItsFrequenciesAtAnyPosition) {
  using Exec = annulus::test::TestExec;
  struct Row {
    std::int64_t position;
    int i;
    float cosine, sine;
  };
  const std::vector<Row> expected{
      {1, 0, 0x1.748254p-1f, 0x1.221304p+0f},         {1, 24, 0x1.58b7cep+0f, 0x1.d3faa6p-8f},
      {1, 63, 0x1.58b90cp+0f, 0x1.c08f36p-25f},       {131071, 0, -0x1.19fa44p+0f, -0x1.8c9910p-1f},
      {131071, 1, -0x1.962220p-1f, 0x1.169052p+0f},   {131071, 63, 0x1.58b7e8p+0f, 0x1.c08dd6p-8f},
      {1048575, 0, 0x1.0fa7fap+0f, -0x1.a86ff6p-1f},  {1048575, 1, -0x1.abb926p-2f, -0x1.47b806p+0f},
      {1048575, 24, 0x1.57f7c8p+0f, -0x1.6cd52ap-4f}, {16777215, 0, -0x1.b5e748p-2f, -0x1.46e0a2p+0f},
      {16777215, 1, 0x1.f4a2bep-1f, 0x1.da0646p-1f},  {16777215, 24, 0x1.804928p-1f, -0x1.1e3538p+0f},
      {16777215, 63, 0x1.124d1cp+0f, 0x1.a193c2p-1f}};
  const Exec exec;
  const RopeFrequencies frequencies = rope_frequencies(1e6, 128, qwen_to_a_million);
  const auto near = [](float actual, float wanted) {
    return actual >= std::nextafter(wanted, -2.0f) && actual <= std::nextafter(wanted, 2.0f);
  };
  for (const Row& row : expected) {
    const Array2<float, Exec> cosine("cosine", 1, 64), sine("sine", 1, 64);
    rope_table(exec, PositionMap{.base = row.position, .hi = 1, .count = 1}, frequencies, cosine, sine);
    const auto c = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), cosine),
               s = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), sine);
    EXPECT_TRUE(near(c(0, row.i), row.cosine)) << row.position << ", " << row.i << ": " << c(0, row.i);
    EXPECT_TRUE(near(s(0, row.i), row.sine)) << row.position << ", " << row.i << ": " << s(0, row.i);
  }
}

// A rank of a balanced cut has runs of rows from all over the sequence.
TEST(RopeTable, OfAShardInRunsHasRowsOfTheWholeSequence) {
  using Exec = annulus::test::TestExec;
  constexpr std::int64_t tokens = 800;
  constexpr int ranks = 3;
  const Exec exec;
  const RopeFrequencies frequencies = rope_frequencies(1e6, 32, {});
  const auto table = [&](const PositionMap& positions) {
    const Array2<float, Exec> cosine("cosine", positions.count, 16), sine("sine", positions.count, 16);
    rope_table(exec, positions, frequencies, cosine, sine);
    return std::pair(annulus::test::copy_on_host(cosine), annulus::test::copy_on_host(sine));
  };
  const auto [cosine, sine] = table(Layout().shard(tokens, 1, 0));
  const Layout layout =
      Layout::parse("balanced").for_mask(Mask::parse("causal+documents:0,3,340,590,610", tokens), ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const PositionMap shard = layout.shard(tokens, ranks, rank);
    ASSERT_NE(shard.runs, nullptr);
    ASSERT_GT(shard.run_count, 1);
    for (const PositionMap& positions : {shard, shard.slice({shard.count / 5, shard.count - 1})}) {
      const auto [c, s] = table(positions);
      for (std::int64_t row = 0; row < positions.count; ++row)
        for (int i = 0; i < 16; ++i) {
          ASSERT_EQ(c(row, i), cosine(positions(row), i)) << "rank " << rank << ", row " << row;
          ASSERT_EQ(s(row, i), sine(positions(row), i)) << "rank " << rank << ", row " << row;
        }
    }
  }
}

TEST(RopeScaling, RefusesNumbersWithoutSenseOrEffect) {
  const auto refusal = [](const RopeScaling& scaling) {
    Config config = test::small_config();
    config.rope = scaling;
    return error_text([&] { config.check(); });
  };
  EXPECT_EQ(refusal(qwen_to_a_million), "no error");
  EXPECT_EQ(refusal({.name = "linear", .factor = 2.5}), "no error");
  EXPECT_EQ(refusal({.name = "llama3", .factor = 8, .original_length = 8192}), "no error");
  RopeScaling beta = qwen_to_a_million, attention = qwen_to_a_million;
  beta.beta_fast = 0.5;
  attention.attention_factor = -1;
  const RopeScaling llama3{.name = "llama3", .factor = 8, .original_length = 8192};
  RopeScaling frequency = llama3, unused = llama3;
  frequency.high_frequency_factor = 1;
  unused.attention_factor = 1;
  for (const auto& [scaling, named] :
       {std::pair<RopeScaling, const char*>{{.name = "dynamic"}, "model.rope_scaling 'dynamic'"},
        {{.factor = 2}, "model.rope_factor = 2"},
        {{.name = "linear", .original_length = 4096}, "model.rope_original_length"},
        {{.name = "linear", .factor = 0.5}, "model.rope_factor = 0.5"},
        {{.name = "yarn", .factor = 4}, "model.rope_original_length = 0"},
        {{.name = "llama3", .factor = 4}, "model.rope_original_length = 0"},
        {beta, "model.rope_beta_fast = 0.5"},
        {attention, "model.rope_attention_factor = -1"},
        {frequency, "model.rope_high_frequency_factor = 1"},
        {unused, "model.rope_attention_factor = 1"}})
    EXPECT_THAT(refusal(scaling), mentions(named));
}

}  // namespace
}  // namespace annulus::model
