// Loss and perplexity over ranks: that of transformers, the same however ranks share it, each token once.
#include "eval/perplexity.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/evaluation.hpp"
#include "training/io/safetensors/safetensors.hpp"

namespace annulus::eval::test {
namespace {

constexpr double limit = 1e-6;  // relative, in fp32

double cross_entropy(std::span<const float> logits, std::int32_t target) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double(logit));
  return std::log(sum) - double(logits[static_cast<std::size_t>(target)]);
}

using Losses = EvaluationTest;

// The logits of transformers (tests/oracle/golden.py) for the golden tokens, and one token more as the last
// target.
TEST_F(Losses, AreThoseOfTransformers) {
  for (const char* family :
       {"llama", "llama3", "mistral", "qwen2", "qwen3", "llama3_v5", "qwen2_v5", "gemma2", "gemma2_v5"}) {
    const std::filesystem::path golden = std::filesystem::path(ANNULUS_GOLDEN_FOLDER) / family;
    const auto tokens = nlohmann::json::parse(io::read_text(golden / "expected.json"))
                            .at("tokens")
                            .get<std::vector<std::uint16_t>>();
    RawShard<std::uint16_t> stream = numbers(0);
    stream.tokens = tokens;
    stream.tokens.push_back(9);
    write("golden.h5", stream);
    const io::SafetensorsFile exact(golden / "logits.safetensors");
    std::vector<float> logits(tokens.size() * 61);
    exact.read(exact.tensor("logits"), std::span(logits));
    double sum = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      sum += cross_entropy(std::span(logits).subspan(i * 61, 61), stream.tokens[i + 1]);
    for (const int ranks : {1, 3}) {
      const Perplexity got = perplexity_of(ranks, {.folder = golden / "model",
                                                   .tokens = std::ssize(tokens),
                                                   .shards = {file("golden.h5")},
                                                   .overrides = {"train.dtype=f32"}});
      EXPECT_NEAR(got.loss.loss, sum / double(tokens.size()), 1e-5 * got.loss.loss) << family << ranks;
      EXPECT_EQ(got.loss.targets, std::ssize(tokens));
    }
  }
}

TEST_F(Losses, AreTheSameHoweverRanksShareThem) {
  const std::string folder = model("model"), shards = write("stream.h5", numbers(700, {0, 150, 170, 400}));
  for (const std::string mask : {"causal", "documents+window:40,0"}) {
    EvaluationRequest request{
        .folder = folder, .tokens = 130, .shards = {shards}, .overrides = {"attention.mask=" + mask}};
    const Perplexity one = perplexity_of(1, request, {.stride = 50});
    EXPECT_EQ(one.loss.targets, 699 - 3) << "the last tokens of documents have no target";
    struct {
      int ranks, context;
      const char *schedule, *layout;
    } const cases[] = {{2, 2, "burst", "contiguous"},       {2, 1, "ring", "zigzag"},
                       {3, 3, "ring", "striped"},           {3, 3, "all-gather", "zigzag"},
                       {4, 4, "double-ring", "zigzag"},     {4, 2, "ulysses", "contiguous"},
                       {4, 4, "topology-burst", "striped"}, {4, 4, "burst", "block-striped:8"},
                       {3, 3, "all-gather", "balanced"},    {4, 2, "ring", "balanced"}};
    for (const auto& [ranks, context, schedule, layout] : cases) {
      EvaluationRequest other = request;
      for (const std::string& set :
           {fmt::format("parallel.context={}", context), fmt::format("attention.schedule={}", schedule),
            fmt::format("attention.layout={}", layout)})
        other.overrides.push_back(set);
      const Perplexity several = perplexity_of(ranks, other, {.stride = 50});
      const std::string what = fmt::format("{} {} {} {}", mask, ranks, schedule, layout);
      EXPECT_NEAR(several.loss.loss, one.loss.loss, limit * one.loss.loss) << what;
      ASSERT_EQ(several.loss.by_position.size(), one.loss.by_position.size()) << what;
      for (std::size_t i = 0; i < one.loss.by_position.size(); ++i) {
        const auto &a = one.loss.by_position[i], &b = several.loss.by_position[i];
        EXPECT_EQ(a.targets, b.targets) << what;
        EXPECT_NEAR(a.loss, b.loss, limit * a.loss) << what;
      }
    }
  }
}

// Token by token: the logits behind what the window of its target shows of the text before it.
TEST_F(Losses, OfSlidingWindowsAreThoseOfSingleOnes) {
  constexpr std::int64_t length = 40, stride = 15, tokens = 130;
  const EvaluationRequest request{
      .folder = model("model"), .tokens = length, .shards = {write("stream.h5", numbers(tokens))}};
  const data::TokenDataset dataset(std::vector<std::filesystem::path>{request.shards.front()}, tokens - 1);
  const data::Sequence stream = dataset.read_from(0, Layout().shard(tokens - 1, 1, 0));
  double sum = 0;
  with_model(1, request, [&](EvaluationModel& model, comm::Communicator&) {
    std::vector<float> logits(61);
    for (std::int64_t token = 0; token < tokens - 1; ++token) {
      std::int64_t begin = 0;  // of the first window that has the token
      while (begin + length <= token) begin = std::min(begin + stride, tokens - 1 - length);
      model.logits(std::span(stream.tokens).subspan(std::size_t(begin), std::size_t(token - begin + 1)),
                   logits);
      sum += cross_entropy(logits, stream.targets[std::size_t(token)]);
    }
  });
  const Perplexity all = perplexity_of(2, request, {.stride = stride});
  EXPECT_EQ(all.windows, 7);
  EXPECT_EQ(all.loss.targets, tokens - 1);
  EXPECT_NEAR(all.loss.loss, sum / double(tokens - 1), limit * all.loss.loss);
  EXPECT_NE(perplexity_of(1, request).loss.loss, all.loss.loss)
      << "side by side tokens have less before them";
}

TEST_F(Losses, OfOneLayerWithAWindowDependOnNothingBeyondIt) {
  constexpr std::int64_t length = 64, window = 20, changed = 5;
  const EvaluationRequest request{.folder = model("model", 1),
                                  .tokens = length,
                                  .overrides = {fmt::format("attention.mask=window:{},0", window)}};
  with_model(3, request, [&](EvaluationModel& model, comm::Communicator&) {
    const PositionMap rows = model.rows().rows;
    data::Sequence sequence;
    for (std::int64_t row = 0; row < rows.count; ++row) {
      sequence.tokens.push_back(std::int32_t(rows(row) * 7 % 60));
      sequence.targets.push_back(std::int32_t((rows(row) + 1) * 7 % 60));
    }
    sequence.document_starts = {0};
    std::vector<double> before(std::size_t(rows.count)), after(before);
    model.evaluate(std::span(&sequence, 1), before);
    for (std::int64_t row = 0; row < rows.count; ++row)
      if (rows(row) == changed) sequence.tokens[std::size_t(row)] = 59;
    model.evaluate(std::span(&sequence, 1), after);
    for (std::int64_t row = 0; row < rows.count; ++row) {
      const bool sees = rows(row) >= changed && rows(row) <= changed + window;
      EXPECT_EQ(before[std::size_t(row)] != after[std::size_t(row)], sees) << rows(row);
    }
  });
}

TEST_F(Losses, LeaveOutPairsThatTheSelectionDoes) {
  EvaluationRequest request{
      .folder = model("model"), .tokens = 192, .shards = {write("stream.h5", numbers(500))}};
  const double dense = perplexity_of(1, request).loss.loss;
  request.overrides = {"attention.sparsity=vertical-slash:verticals=6,slashes=1,window=20",
                       "attention.layout=block-striped:64"};
  const double one = perplexity_of(1, request).loss.loss;
  EXPECT_GT(std::abs(one - dense), 10 * limit * dense);
  EXPECT_NEAR(perplexity_of(3, request).loss.loss, one, limit * one);
  request.overrides.push_back("sparsity.dense_layers=0-1");
  EXPECT_NEAR(perplexity_of(1, request).loss.loss, dense, limit * dense);
}

TEST_F(Losses, MayBeOfLongerSequencesWithOtherRotaryPositions) {
  EvaluationRequest request{
      .folder = model("model"), .tokens = 256, .shards = {write("stream.h5", numbers(400))}};
  const double as_it_is = perplexity_of(2, request).loss.loss;
  request.overrides = {"model.rope_scaling=yarn", "model.rope_factor=2", "model.rope_original_length=128"};
  EXPECT_GT(std::abs(perplexity_of(2, request).loss.loss - as_it_is), 10 * limit * as_it_is);
}

TEST_F(Losses, OfFewWindowsAreEvenlySpread) {
  const EvaluationRequest request{
      .folder = model("model"), .tokens = 50, .shards = {write("stream.h5", numbers(501))}};
  const Perplexity some = perplexity_of(2, request, {.windows = 3});
  EXPECT_EQ(some.windows, 3);
  EXPECT_EQ(some.loss.targets, 150);
  EXPECT_EQ(perplexity_of(1, request).loss.targets, 500);
}

// Also where ranks have none of its rows.
TEST_F(Losses, AndLogitsOfTheNextTokenAreThoseOfOneRank) {
  const std::vector<std::int32_t> prefix = {7, 3, 50, 11, 2};
  const std::string folder = model("model");
  for (const std::int64_t tokens : {5, 48}) {
    std::vector<float> expected(61);
    const EvaluationRequest request{.folder = folder, .tokens = tokens};
    with_model(1, request,
               [&](EvaluationModel& model, comm::Communicator&) { model.logits(prefix, expected); });
    with_model(7, request, [&](EvaluationModel& model, comm::Communicator& group) {
      std::vector<float> logits(61);
      const int owner = model.logits(prefix, logits);
      group.broadcast(HostExec(), logits.data(), logits.size() * sizeof(float), owner);
      for (std::size_t i = 0; i < logits.size(); ++i)
        EXPECT_NEAR(logits[i], expected[i], 1e-4 * std::abs(expected[i]) + 1e-5) << tokens;
    });
  }
}

TEST_F(Losses, NameWhatDoesNotFit) {
  const std::string folder = model("model");
  const EvaluationRequest good{.folder = folder, .tokens = 50, .shards = {write("stream.h5", numbers(200))}};
  const auto error = [&](const EvaluationRequest& request, const WindowChoices& choices = {}) {
    return error_text([&] { perplexity_of(1, request, choices); });
  };
  const auto with = [&](const std::vector<std::string>& overrides) {
    EvaluationRequest request = good;
    request.overrides = overrides;
    return request;
  };
  EvaluationRequest other = good;
  std::filesystem::create_directory(file("empty"));
  other.shards = {file("empty")};
  EXPECT_THAT(error(other), mentions("data.shards", "empty"));
  other.shards = {};
  EXPECT_THAT(error(other), mentions("data.shards"));
  other = good;
  other.tokens = 200;
  EXPECT_THAT(error(other), mentions("data.shards", "200 tokens"));
  EXPECT_THAT(error(good, {.stride = 51}), mentions("--stride 51", "50"));
  EXPECT_THAT(error(with({"model.layers=3"})), mentions("model.layers", "3", "2"));
  EXPECT_THAT(error(with({"model.vocabulary=80"})), mentions("model.vocabulary", folder));
  EXPECT_THAT(error(with({"attention.sparsity=vertical-slash:verticals=6,slashes=1,window=64"})),
              mentions("attention.sparsity", "50 tokens"));
  EXPECT_THAT(error(with({"attention.mask=documents:0,60"})), mentions("attention.mask"));
  EXPECT_THAT(error(with({"attention.mask=full"})), mentions("attention.mask"));
  RawShard<std::uint16_t> large = numbers(200);
  large.vocabulary = 62;
  other.tokens = 50;
  other.shards = {write("large.h5", large)};
  EXPECT_THAT(error(other), mentions("data.shards", "62", "61"));
  large.vocabulary = 61;
  large.fingerprint = "crc32:01234567";
  write("large.h5", large);
  io::write_text_atomically(file("model/tokenizer.model"), "of another tokenizer");
  EXPECT_THAT(error(other), mentions("data.shards", "tokenizer", folder));
}

}  // namespace
}  // namespace annulus::eval::test
