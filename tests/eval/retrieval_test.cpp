// Answers over ranks: those of greedy decoding, the same however ranks share them.
#include "eval/retrieval.hpp"

#include "eval/evaluation.hpp"
#include "eval/sampler.hpp"

namespace annulus::eval::test {
namespace {

/// The ids of EvaluationTest's models; they stand for no text.
class Numbers : public data::Tokenizer {
 public:
  const data::TokenizerIdentity& identity() const override { return identity_; }
  std::span<const std::uint8_t> model() const override { return {}; }
  void encode(std::string_view, std::vector<std::int32_t>&) const override {}
  std::string decode(std::span<const std::int32_t>) const override { return ""; }

 private:
  data::TokenizerIdentity identity_{
      .name = "numbers", .vocabulary = 61, .end_of_document = 60, .fingerprint = ""};
};

class Answers : public EvaluationTest {
 protected:
  struct Case {
    Ids prompt, answer;
  };

  static Ids prompt_of(std::int64_t tokens, std::int64_t seed) {
    Ids ids;
    for (std::int64_t i = 0; i < tokens; ++i)
      ids.push_back(static_cast<std::int32_t>(splitmix64(std::uint64_t(seed * 1000 + i)) % 60));
    return ids;
  }

  /// What greedy decoding puts behind a prompt.
  static Ids decoded(EvaluationModel& model, Ids ids, std::int64_t tokens) {
    Sampler sampler({});
    std::vector<float> logits(61);
    const auto prompt = std::ssize(ids);
    while (std::ssize(ids) < prompt + tokens) {
      model.logits(ids, logits);
      ids.push_back(sampler.choose(logits));
    }
    ids.erase(ids.begin(), ids.begin() + prompt);
    return ids;
  }

  SampleSet write_samples(const std::string& name, std::int64_t tokens, const std::vector<Case>& cases,
                          bool loss_mask = true) const {
    SampleGroup group{.tokens = tokens};
    for (std::size_t i = 0; i < cases.size(); ++i)
      group.samples.push_back({.kind = i % 2 == 0 ? "needle" : "values",
                               .depth = i % 2 == 0 ? std::optional(0.25 * double(i % 4)) : std::nullopt});
    group.compose = [&](std::int64_t i) {
      const Case& one = cases[static_cast<std::size_t>(i)];
      return compose(one.prompt, one.answer, tokens, 60);
    };
    eval::write_samples(file(name), Numbers(), {group}, {}, loss_mask);
    return read_samples(file(name));
  }

  static Retrieval retrieval_of(int ranks, const SampleSet& set, EvaluationRequest request) {
    Retrieval result;
    const SampleShard& shard = set.shards.front();
    request.tokens = shard.tokens;
    request.shards = {(set.folder / shard.file).string()};
    comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& world) {
      const training::WeightSource source(request.folder);
      LazyWeights weights(source);
      Retrieval mine;
      answer_samples(world, config_of(request), weights, shard, mine);
      if (world.rank() == 0) result = mine;
    });
    return result;
  }
};

// Every second answer is that of decoding; in the others one token is another one, the first, the last or one
// between.
TEST_F(Answers, AreThoseOfDecoding) {
  constexpr std::int64_t length = 60, answer_tokens = 4;
  const EvaluationRequest request{.folder = model("model"), .tokens = length};
  std::vector<Case> cases;
  std::vector<bool> expected;
  with_model(1, request, [&](EvaluationModel& model, comm::Communicator&) {
    for (std::int64_t i = 0; i < 8; ++i) {
      Case one{.prompt = prompt_of(20 + 5 * i, i), .answer = {}};
      one.answer = decoded(model, one.prompt, answer_tokens);
      if (i % 2 == 1) {
        std::int32_t& token = one.answer[static_cast<std::size_t>(i / 2) % answer_tokens];
        token = (token + 1) % 60;
      }
      expected.push_back(decoded(model, one.prompt, answer_tokens) == one.answer);
      cases.push_back(std::move(one));
    }
  });
  EXPECT_EQ(std::ranges::count(expected, true), 4);
  const SampleSet set = write_samples("samples", length, cases);
  const Retrieval alone = retrieval_of(1, set, request);
  ASSERT_EQ(alone.samples.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(alone.samples[i].correct, expected[i]) << i;
    EXPECT_EQ(alone.samples[i].answer_tokens, answer_tokens);
    EXPECT_GT(alone.samples[i].loss, 0);
  }
  struct {
    int ranks, context;
    const char *schedule, *layout;
  } const cases_of_ranks[] = {{2, 2, "burst", "contiguous"},   {2, 1, "ring", "zigzag"},
                              {3, 1, "ring", "contiguous"},    {3, 3, "all-gather", "zigzag"},
                              {4, 2, "ring", "striped"},       {4, 4, "double-ring", "block-striped:8"},
                              {3, 3, "all-gather", "balanced"}};
  for (const auto& [ranks, context, schedule, layout] : cases_of_ranks) {
    SCOPED_TRACE(fmt::format("{} {} {} {}", ranks, context, schedule, layout));
    EvaluationRequest other = request;
    other.overrides = {fmt::format("parallel.context={}", context),
                       fmt::format("attention.schedule={}", schedule),
                       fmt::format("attention.layout={}", layout)};
    const Retrieval several = retrieval_of(ranks, set, other);
    EXPECT_EQ(several.ranks, ranks);
    ASSERT_EQ(several.samples.size(), 8u);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(several.samples[i].correct, expected[i]) << i;
      EXPECT_EQ(several.samples[i].answer_tokens, answer_tokens);
      EXPECT_NEAR(several.samples[i].loss, alone.samples[i].loss, 1e-5 * alone.samples[i].loss);
    }
  }
}

// Two prompts that differ beyond the window of the answer are one to a model of one layer, and two to a dense
// one.
TEST_F(Answers, OfOneLayerWithAWindowDependOnNothingBeyondIt) {
  constexpr std::int64_t length = 60;
  EvaluationRequest request{.folder = model("model", 1), .tokens = length, .overrides = {}};
  std::vector<Case> cases(2, {.prompt = prompt_of(50, 1), .answer = {}});
  cases[1].prompt[20] = (cases[1].prompt[20] + 1) % 60;
  with_model(1, request, [&](EvaluationModel& model, comm::Communicator&) {
    for (Case& one : cases) one.answer = decoded(model, cases[0].prompt, 3);
  });
  const SampleSet set = write_samples("samples", length, cases);
  for (const int ranks : {1, 3}) {
    const auto dense = retrieval_of(ranks, set, request).samples;
    EXPECT_TRUE(dense[0].correct);
    EXPECT_NE(dense[0].loss, dense[1].loss);
    EvaluationRequest windowed = request;
    windowed.overrides = {"attention.mask=window:25,0"};
    const auto near = retrieval_of(ranks, set, windowed).samples;
    EXPECT_EQ(near[0].loss, near[1].loss);
    EXPECT_EQ(near[0].correct, near[1].correct);
  }
}

TEST_F(Answers, AreCountedByKindLengthAndDepth) {
  Retrieval one{.model = "a,b", .attention = "", .mask = {}, .dtype = {}, .device = {}, .samples = {}};
  const auto add = [&](std::int64_t tokens, const char* kind, std::optional<double> depth, bool correct,
                       double loss) {
    one.samples.push_back({.tokens = tokens,
                           .facts = {.kind = kind, .depth = depth, .answer = "x"},
                           .correct = correct,
                           .loss = loss,
                           .answer_tokens = 2});
  };
  add(512, "needle", 0.0, true, 1);
  add(512, "needle", 0.0, false, 3);
  add(512, "needle", 1.0, true, 2);
  add(512, "values", std::nullopt, false, 5);
  add(1024, "needle", 0.0, false, 6);
  const auto cells = cells_of(one, true);
  ASSERT_EQ(cells.size(), 4u);
  EXPECT_EQ(cells[0].samples, 2);
  EXPECT_EQ(cells[0].score(), 0.5);
  EXPECT_EQ(cells[0].loss, 1.0);
  EXPECT_EQ(cells[2].depth, std::nullopt);
  const auto kinds = cells_of(one, false);
  ASSERT_EQ(kinds.size(), 3u);
  EXPECT_EQ(kinds[0].samples, 3);
  EXPECT_EQ(kinds[0].correct, 2);
  EXPECT_EQ(to_csv({one}),
            "model,sparsity,kind,tokens,depth,samples,correct,score,loss\n"
            "\"a,b\",,needle,512,0.0,2,1,0.5,1.0\n"
            "\"a,b\",,needle,512,1.0,1,1,1.0,1.0\n"
            "\"a,b\",,values,512,,1,0,0.0,2.5\n"
            "\"a,b\",,needle,1024,0.0,1,0,0.0,3.0\n");
  EXPECT_THAT(to_table({one}), mentions("2/3", "0/1", "needle", "values", "512", "1024"));
  const nlohmann::json json = to_json(one);
  EXPECT_EQ(json.at("cells").size(), 4u);
  EXPECT_EQ(json.at("cells")[0].at("score"), 0.5);
  EXPECT_EQ(json.at("samples")[4].at("loss"), 3.0);
  EXPECT_TRUE(json.at("samples")[3].at("depth").is_null());
  const std::string html = to_html({one}, "of a test");
  EXPECT_THAT(html, mentions("kind needle, tokens 512: 67 %", "depth 100 %, tokens 512: 100 %",
                             "depth 100 %, tokens 1024: not measured", "a,b", "of a test"));
}

TEST_F(Answers, WhatCannotBeScoredIsNamed) {
  EvaluationRequest request{.folder = model("model"), .overrides = {}};
  const std::vector<Case> cases{{prompt_of(10, 1), {1, 2}}};
  const auto error = [&](const SampleSet& set) { return error_text([&] { retrieval_of(1, set, request); }); };
  EXPECT_THAT(error(write_samples("unmasked", 16, cases, false)),
              mentions("length-0000016.h5", "--all-tokens-count"));
  const SampleSet masked = write_samples("masked", 16, cases);
  request.overrides = {"attention.mask=full"};
  EXPECT_THAT(error(masked), mentions("attention.mask", "full"));
  request.overrides = {"data.sequence_length=7"};
  EXPECT_THAT(error(masked), mentions("data.sequence_length", "7", "16"));
  write("others.h5", numbers(40));
  request.overrides = {fmt::format("data.shards='{}'", file("others.h5"))};
  EXPECT_THAT(error(masked), mentions("data.shards", "length-0000016.h5"));
  request.overrides = {};
  EXPECT_THAT(error(write_samples("empty", 16, {{prompt_of(10, 1), {}}})), mentions("sample 0", "no answer"));
}

}  // namespace
}  // namespace annulus::eval::test
