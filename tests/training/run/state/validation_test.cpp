// The loss on data.validation: right, the same however ranks share it, and nothing that training notices.
#include "training/run/validation.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include <annulus/attention/sequence/layout.hpp>
#include "training/data/shards.hpp"
#include "training/run/run_data.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

constexpr double limit = 1e-6;  // relative, in fp32

// Of each record that has one.
std::vector<nlohmann::json> validations(const Config& config) {
  std::vector<nlohmann::json> all;
  for (const nlohmann::json& record : records(config))
    if (record.contains("validation")) all.push_back(record.at("validation"));
  return all;
}

class ValidationRun : public TinyTest {
 protected:
  // Of the training shards, so that the loss is known.
  Config config(const std::string& name, const std::vector<std::string>& sets = {}) const {
    return with(tiny_.wide(name, 0,
                           {"data.validation=own=" + tiny_.file("shards").string(), "train.validate_every=1",
                            "train.validate_sequences=7", "train.steps=2", "train.lr=0", "train.min_lr=0",
                            "train.warmup_steps=1"}),
                sets);
  }
};

// At a learning rate of 0 the losses of steps that read each sequence once are those of one set of weights.
TEST_F(ValidationRun, IsTheMeanOfAllTokens) {
  Config all = config("all", {"train.validate_sequences=0", "train.validate_every=0",
                              "attention.mask=documents", "model.hidden=32", "model.ffn=40"});
  comm::run_loopback(Topology({1}), [&](comm::Communicator& world) {
    all.train.steps = open_data(world, all)->sequences();
  });
  run(1, all);
  const std::vector<double> loss = losses(all), targets = metric(all, "targets");
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < loss.size(); ++i) {
    sum += loss[i] * targets[i];
    count += targets[i];
  }
  const nlohmann::json own = validations(all).back().at("own");
  EXPECT_NEAR(own.at("loss"), sum / count, limit * sum / count);
  EXPECT_EQ(own.at("targets"), std::int64_t(count));
}

// On any ranks and nodes, in groups, with any schedule, layout, stage of ZeRO and recompute policy; where
// sequences of validation are longer and where they are not; where groups and passes do not divide their
// number.
TEST_F(ValidationRun, IsTheSameHoweverRanksShareIt) {
  struct Case {
    int ranks, context;
    const char *schedule, *layout;
    int zero;
    const char* recompute;
    int at_once;
  } const cases[] = {
      {1, 1, "ring", "zigzag", 0, "full", 2},
      {2, 1, "ring", "zigzag", 3, "none", 2},
      {2, 2, "ring", "contiguous", 1, "selective", 1},
      {2, 2, "ulysses", "zigzag", 0, "none", 2},
      {3, 3, "burst", "striped", 2, "full", 1},
      {3, 3, "all-gather", "zigzag", 0, "none", 1},
      {3, 3, "helper-worker", "contiguous", 0, "none", 1},
      {4, 2, "ring", "striped", 3, "selective", 2},
      {4, 4, "burst", "block-striped:8", 3, "sequence-selective", 1},
      {4, 4, "double-ring", "zigzag", 0, "none", 1},
      {4, 4, "topology-burst", "zigzag", 2, "full", 1},
      {4, 4, "hierarchical", "zigzag", 1, "none", 1},
      {4, 4, "hybrid:2x2", "contiguous", 0, "selective", 1},
  };
  for (const std::string mask : {"causal", "documents+window:40,0"})
    for (const std::string length : {"0", "130"}) {
      const Config reference =
          config("reference " + mask + length,
                 {"attention.mask=" + mask, "data.validation_length=" + length, "train.validate_every=2"});
      run(1, reference);
      const nlohmann::json expected = validations(reference).back().at("own");
      const double loss = expected.at("loss");
      for (const Case& of : cases) {
        const Config other = copy(
            reference, fmt::format("{} of {} {} {}", of.ranks, of.context, of.schedule, of.layout),
            {fmt::format("parallel.context={}", of.context), fmt::format("parallel.zero={}", of.zero),
             fmt::format("parallel.ranks_per_node={}", of.ranks == 4 ? 2 : 0),
             fmt::format("attention.schedule={}", of.schedule), fmt::format("attention.layout={}", of.layout),
             fmt::format("memory.recompute={}", of.recompute),
             fmt::format("train.micro_batches={}", of.at_once),
             fmt::format("train.sequences_per_pass={}", of.at_once)});
        SCOPED_TRACE(other.run.folder);
        run(of.ranks, other);
        const nlohmann::json got = validations(other).back().at("own");
        EXPECT_NEAR(got.at("loss"), loss, limit * loss);
        EXPECT_EQ(got.at("targets"), expected.at("targets"));
      }
    }
}

TEST_F(ValidationRun, TakesTheSelectionsOfSparseAttention) {
  for (const auto& [pattern, most] :
       {std::pair("verticals=6,slashes=1,window=20", limit), std::pair("recall=0.9,window=20", 1e-4)})
    for (const std::string length : {"150", "200"}) {
      const Config one =
          config(pattern + length, {"data.sequence_length=150", "data.validation_length=" + length,
                                    fmt::format("attention.sparsity=vertical-slash:{}", pattern),
                                    "attention.layout=block-striped:64"});
      const Config several = copy(one, pattern + length + " several");
      run(1, one);
      run(3, several);
      const double loss = validations(one).back().at("own").at("loss");
      EXPECT_NEAR(validations(several).back().at("own").at("loss"), loss, most * loss) << pattern << length;
    }
}

TEST_F(ValidationRun, LeavesOutPairsThatSparseAttentionDoesNotSelect) {
  const Config sparse =
      config("sparse", {"data.sequence_length=150", "attention.layout=block-striped:64",
                        "attention.sparsity=vertical-slash:verticals=6,slashes=1,window=20"});
  Config dense = copy(sparse, "dense");
  dense.attention.sparsity.clear();
  run(1, sparse);
  run(1, dense);
  EXPECT_NE(validations(sparse).back(), validations(dense).back());
}

TEST_F(ValidationRun, ChangesNoBitOfTraining) {
  struct {
    int ranks, zero;
    const char *recompute, *sparsity;
  } const cases[] = {{1, 0, "none", ""},
                     {2, 3, "full", ""},
                     {3, 2, "selective", ""},
                     {2, 0, "sequence-selective", "vertical-slash:verticals=6,slashes=1,window=20"}};
  for (const auto& [ranks, zero, recompute, sparsity] : cases)
    for (const std::string length : {"0", "200"}) {
      Config without =
          config(fmt::format("without {} {}", recompute, length),
                 {"train.lr=1e-2", "train.min_lr=1e-3", "train.steps=4", "data.sequence_length=150",
                  "train.micro_batches=2", "attention.layout=block-striped:64"});
      without.data.validation.clear();
      without.parallel.zero = zero;
      without.memory.recompute = {recompute};
      without.attention.sparsity = sparsity;
      without.sparsity.audit_every = *sparsity != 0 ? 2 : 0;
      run(ranks, without);
      Config with = copy(without, fmt::format("with {} {}", recompute, length));
      with.data.validation = {tiny_.file("shards").string()};
      with.data.validation_length = std::stoll(length);
      with.train.validate_every = 1;
      expect_same_run(without, ranks, with);
      EXPECT_EQ(validations(with).size(), 4u);
    }
}

TEST_F(ValidationRun, RefusesSetsThatDoNotFit) {
  const std::string shards = tiny_.file("shards").string();
  const auto error = [&](const std::vector<std::string>& sets) {
    return run_error(1, with(config("wrong"), sets));
  };
  EXPECT_THAT(error({"data.validation=books=/nowhere"}), mentions("data.validation", "/nowhere"));
  EXPECT_THAT(error_text([&] { error({"data.validation==" + shards}); }),
              mentions("data.validation", "NAME=PATH"));
  EXPECT_THAT(error({"data.validation_length=1000000"}), mentions("data.validation", "1000000", "tokens"));
  EXPECT_THAT(
      error({"data.validation_length=60", "attention.mask=causal+blocks:10," + tiny_.file("none").string()}),
      mentions("attention.mask"));
  data::test::RawShard<> words;
  words.tokenizer = "words";
  words.vocabulary = 300;
  words.tokens.assign(200, 1);
  words.write(tiny_.file("words.h5"));
  EXPECT_THAT(error({"data.validation=books=" + tiny_.file("words.h5").string()}),
              mentions("data.validation", "books", "words", "byte"));
}

// A rank of a context-parallel group whose losses are numbers that tell where they come from.
class Numbered final : public Evaluator {
 public:
  explicit Numbered(const PositionMap& rows) : rows_(rows) {}
  int sequences() const override { return 2; }
  data::RankRows rows() const override { return rows_; }
  void evaluate(std::span<const data::Sequence> sequences, std::span<double> losses,
                std::span<std::uint8_t> /*greedy*/) override {
    ++passes;
    auto loss = losses.begin();
    for (const data::Sequence& sequence : sequences)
      for (std::int64_t row = 0; row < rows_.count; ++row)
        *loss++ = double(sequence.index) + 1e-5 * double(rows_(row));
  }
  int passes = 0;

 private:
  PositionMap rows_;
};

class ValidationOfRanks : public TinyTest {
 protected:
  static constexpr std::int64_t tokens = 3000;
  std::vector<ValidationSet> sets(comm::Communicator& world) const {
    Config config = tiny_.config("sets", {fmt::format("data.validation_length={}", tokens),
                                          "data.validation=own=" + tiny_.file("shards").string()});
    return open_validation(world, config, open_data(world, config)->tokenizer());
  }
};

TEST_F(ValidationOfRanks, TellsTokensApartByWhatComesBeforeThemInTheirDocument) {
  for (const int groups : {1, 2, 3})
    comm::run_loopback(Topology::uniform(2 * groups, 2 * groups), [&](comm::Communicator& world) {
      const auto context = world.split(world.rank() / 2, world.rank());
      const Validation validation(world, *context, sets(world), 0);
      Numbered evaluator(Layout::parse("striped").shard(tokens, 2, context->rank()));
      const auto result = validation.run(evaluator, [] { return false; });
      ASSERT_TRUE(result);
      const data::TokenDataset& dataset = *validation.sets().front().dataset;
      std::map<std::int64_t, std::pair<double, std::int64_t>> expected;  // by bucket
      const PositionMap all = Layout().shard(tokens, 1, 0);
      for (std::int64_t index = 0; index < dataset.sequences(); ++index) {
        const data::Sequence sequence = dataset.read(index, all);
        for (std::int64_t position = 0; position < tokens; ++position) {
          if (sequence.targets[std::size_t(position)] == data::ignored_target) continue;
          const auto behind = std::ranges::upper_bound(sequence.document_starts, position);
          auto& [sum, count] = expected[position - *std::prev(behind) < 1024 ? 1024 : 4096];
          sum += double(index) + 1e-5 * double(position);
          ++count;
        }
      }
      ASSERT_EQ(expected.size(), 2u) << "documents of the fixture are longer than a bucket";
      double sum = 0;
      std::int64_t count = 0;
      for (const ValidationLoss::Bucket& bucket : result->front().by_position) {
        const auto& [its_sum, its_count] = expected.at(bucket.up_to);
        EXPECT_EQ(bucket.targets, its_count);
        EXPECT_NEAR(bucket.loss, its_sum / double(its_count), 1e-12);
        sum += its_sum;
        count += its_count;
      }
      EXPECT_EQ(result->front().by_position.size(), 2u);
      EXPECT_EQ(result->front().targets, count);
      EXPECT_NEAR(result->front().loss, sum / double(count), 1e-12);
    });
}

TEST_F(ValidationOfRanks, EndsOnAllRanksWhereOneHasToStop) {
  comm::run_loopback(Topology::uniform(2, 2), [&](comm::Communicator& world) {
    const auto context = world.split(world.rank(), 0);
    const Validation validation(world, *context, sets(world), 0);
    Numbered evaluator(Layout().shard(tokens, 1, 0));
    EXPECT_FALSE(validation.run(evaluator, [&] { return world.rank() == 1 && evaluator.passes == 1; }));
    EXPECT_EQ(evaluator.passes, 1);
  });
}

}  // namespace
}  // namespace annulus::training::test
