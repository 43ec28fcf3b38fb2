// attention.layout = 'balanced': every batch is cut for its documents, and nothing else changes.

#include <array>
#include <nlohmann/json.hpp>
#include <random>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/training/data/packer.hpp>

#include "training/data/dataset.hpp"
#include "training/data/shard.hpp"
#include "training/io/json_lines.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

/// Runs on documents of 1 to some hundred tokens, in sequences of 199.
class Balanced : public TinyTest {
 protected:
  Balanced() {
    std::mt19937 random(7);
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> documents;
    while (tokens.size() < 199 * 30) {
      documents.push_back(std::ssize(tokens));
      const auto length = 1 + (random() % 5 == 0 ? random() % 300 : random() % 40);
      for (std::size_t i = 0; i < length; ++i)
        tokens.push_back(static_cast<std::int32_t>('a' + (i * i + documents.size()) % 23));
    }
    data::write_shard(tiny_.file("documents.h5"), *data::make_byte_tokenizer(), tokens, documents);
  }

  /// Three optimizer steps of four sequences.
  Config config(const std::string& name, const std::string& layout,
                const std::vector<std::string>& sets = {}) const {
    std::vector<std::string> all = {"attention.layout=" + layout,
                                    "attention.mask=documents",
                                    "data.sequence_length=199",
                                    "attention.schedule=all-gather",
                                    "model.heads=4",
                                    "model.kv_heads=2",
                                    "train.micro_batches=4",
                                    "train.sequences_per_pass=2",
                                    "train.steps=3",
                                    "train.clip_norm=0.1"};
    all.insert(all.end(), sets.begin(), sets.end());
    Config made = tiny_.wide(name + ' ' + layout, 0, all);
    made.data.shards = {tiny_.file("documents.h5").string()};
    return made;
  }

  static void expect_near(const std::vector<double>& a, const std::vector<double>& b, double limit = 1e-6) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], limit * std::abs(b[i])) << i;
  }

  static constexpr double limit = 2e-6;  // relative, of parameters
};

TEST_F(Balanced, LossesAreThoseOfEveryFixedLayout) {
  const Config one = config("one", "contiguous");
  run(1, one);
  for (const int ranks : {2, 3, 4}) {
    for (const char* const layout : {"contiguous", "zigzag", "striped", "block-striped:16", "balanced"}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", layout, ranks));
      const Config shared = config(fmt::format("{}", ranks), layout);
      run(ranks, shared);
      expect_near(losses(shared), losses(one));
      expect_near(metric(shared, "grad_norm"), metric(one, "grad_norm"), 1e-5);
      EXPECT_EQ(metric(shared, "targets"), metric(one, "targets"));
      EXPECT_LT(difference(one, shared), limit);
    }
  }
}

// Every value of what goes with it, with every other in some case.
TEST_F(Balanced, AgreesWithStripedUnderAllSettings) {
  struct {
    int ranks, context, ranks_per_node;
    const char* schedule;
    int zero, sequences;
    const char *recompute, *pattern;
    const char* mask;
  } const cases[] = {
      {2, 0, 0, "ring", 0, 1, "none", "", "documents"},
      {3, 0, 0, "burst", 3, 4, "selective", "", "documents+window:50,0"},
      {4, 0, 2, "double-ring", 0, 2, "full", "", "documents"},
      {4, 0, 2, "topology-burst", 2, 1, "none", "window:9,0, causal", "documents"},
      {4, 2, 0, "all-gather", 1, 2, "full", "window:30,0, causal", "documents"},
      {4, 0, 2, "hybrid:2x2", 3, 2, "selective", "", "documents"},
      {2, 0, 0, "ulysses", 0, 4, "none", "causal, window:9,0", "documents"},
      {4, 0, 2, "hierarchical", 0, 2, "none", "", "causal"},
      {3, 0, 0, "auto", 0, 2, "none", "", "documents"},
  };
  for (const auto& [ranks, context, ranks_per_node, schedule, zero, sequences, recompute, pattern, mask] :
       cases) {
    const std::string name = fmt::format("{} {} {} {}", ranks, schedule, zero, pattern);
    SCOPED_TRACE(name);
    std::vector<std::string> sets = {
        fmt::format("attention.schedule={}", schedule),
        fmt::format("parallel.context={}", context),
        fmt::format("parallel.ranks_per_node={}", ranks_per_node),
        fmt::format("parallel.zero={}", zero),
        fmt::format("train.sequences_per_pass={}", sequences),
        fmt::format("memory.recompute={}", recompute),
        fmt::format("attention.mask={}", mask),
    };
    if (*pattern != '\0') sets.push_back(fmt::format("model.pattern={}", pattern));
    const Config balanced = config(name, "balanced", sets), striped = config(name, "striped", sets);
    for (const Config& each : {balanced, striped}) run(ranks, each);
    expect_near(losses(balanced), losses(striped));
    EXPECT_LT(difference(striped, balanced), limit);
  }
}

TEST_F(Balanced, ARepeatedRunAndAResumedOneHaveTheSameBits) {
  const Config whole = config("whole", "balanced", {"train.steps=5"});
  run(3, whole);
  expect_same_run(whole, 3, copy(whole, "again"));
  expect_same_when_resumed(whole, 3, copy(whole, "resumed"));
}

TEST_F(Balanced, AnotherNumberOfRanksGoesOn) {
  const Config whole = config("whole", "balanced", {"train.steps=5"});
  run(3, whole);
  const Config resumed = copy(whole, "resumed");
  interrupt(whole, 3, resumed);
  run(4, resumed);
  expect_near(losses(resumed), losses(whole));
  EXPECT_LT(difference(whole, resumed), limit);
}

TEST_F(Balanced, MetricsTellHowEvenlyItIsDealtOut) {
  const auto cuts = [](const Config& of) {
    std::vector<nlohmann::json> all;
    io::read_json_lines(of.run.folder + "/metrics.jsonl", [&](const nlohmann::json& record, std::int64_t) {
      if (record.contains("cut")) all.push_back(record.at("cut"));
    });
    return all;
  };
  const Config balanced = config("metrics", "balanced", {"parallel.context=2"});
  run(4, balanced);
  const auto found = cuts(balanced);
  ASSERT_EQ(found.size(), 3u);
  for (const nlohmann::json& cut : found) {
    EXPECT_GE(cut.at("imbalance"), 1.0);
    EXPECT_LT(cut.at("imbalance"), 1.02);
    EXPECT_GE(cut.at("group_imbalance"), 1.0);
    EXPECT_LT(cut.at("group_imbalance"), 1.3);
    EXPECT_GT(cut.at("seconds_ahead"), 0.0);
  }
  EXPECT_NE(found[0].at("fingerprint"), found[1].at("fingerprint"));
  const Config again = copy(balanced, "again"), striped = config("metrics", "striped");
  run(4, again);
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(cuts(again)[i].at("fingerprint"), found[i].at("fingerprint"));
  run(2, striped);
  EXPECT_TRUE(cuts(striped).empty());
}

// Sequences of a step go to the groups by their pairs; the loss is the mean over all their tokens.
TEST_F(Balanced, GroupsShareWhatAStepReads) {
  const Config one = config("groups", "striped", {"train.micro_batches=8"});
  run(1, one);
  for (const auto& [ranks, context] : {std::pair{4, 2}, {4, 1}, {2, 1}}) {
    const int groups = ranks / context;
    const Config dealt = config(
        fmt::format("{} {}", ranks, context), "balanced",
        {fmt::format("parallel.context={}", context), fmt::format("train.micro_batches={}", 8 / groups)});
    run(ranks, dealt);
    expect_near(losses(dealt), losses(one));
    EXPECT_EQ(metric(dealt, "targets"), metric(one, "targets"));
    EXPECT_LT(difference(one, dealt), limit);
    expect_same_when_resumed(dealt, ranks, copy(dealt, "resumed"));
  }
}

// Ranks without rows, sequences of a few tokens, documents of one.
TEST_F(Balanced, ShortSequencesAndDocumentsOfOneToken) {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> documents;
  for (int i = 0; i < 200; ++i) {
    tokens.push_back('a' + i % 20);
    if (i % 5 != 3) documents.push_back(i);
  }
  data::write_shard(tiny_.file("single.h5"), *data::make_byte_tokenizer(), tokens, documents);
  const auto short_one = [&](const std::string& name, const std::string& layout) {
    Config made = config(name, layout, {"data.sequence_length=3", "train.sequences_per_pass=4"});
    made.data.shards = {tiny_.file("single.h5").string()};
    return made;
  };
  const Config one = short_one("one", "contiguous");
  run(1, one);
  for (const int ranks : {2, 4, 5}) {
    const Config shared = short_one(fmt::format("{}", ranks), "balanced");
    run(ranks, shared);
    expect_near(losses(shared), losses(one));
    EXPECT_LT(difference(one, shared), limit) << ranks;
  }
}

TEST_F(Balanced, AutoTakesItWhereDocumentsAskForIt) {
  const Config chosen = config("auto", "auto", {"attention.schedule=auto"});
  EXPECT_NO_THROW(run(4, chosen));
  const Config fixed = config("auto with early positions", "auto",
                              {"attention.schedule=auto", "memory.recompute=sequence-selective"});
  EXPECT_NE(run(4, fixed).layout, "balanced");
}

TEST_F(Balanced, ValidationIsThatOfEveryLayout) {
  const auto validation = [&](const std::string& layout, int ranks, int length) {
    const Config of = config(
        fmt::format("{} {}", ranks, length), layout,
        {"data.validation=own=" + tiny_.file("documents.h5").string(), "train.validate_every=2",
         "train.validate_sequences=5", "train.steps=2", fmt::format("data.validation_length={}", length)});
    run(ranks, of);
    std::vector<double> numbers;
    io::read_json_lines(of.run.folder + "/metrics.jsonl", [&](const nlohmann::json& record, std::int64_t) {
      if (!record.contains("validation")) return;
      const nlohmann::json& own = record.at("validation").at("own");
      numbers = {own.at("loss"), own.at("targets")};
    });
    return numbers;
  };
  for (const int length : {199, 100}) {
    const std::vector<double> one = validation("contiguous", 1, length);
    expect_near(validation("balanced", 3, length), one);
    expect_near(validation("balanced", 4, length), one);
  }
}

// Threads that read ahead agree on the plans of a sequence. What is wrong with them on one rank ends all,
// before the optimizer step that would use them.
TEST_F(Balanced, WhatOneRankPreparesWronglyIsNamedWithTheSequence) {
  constexpr std::int64_t sequence = 10;  // of the third optimizer step
  const Config wrong = config("wrong", "balanced", {"data.shuffle=false"});
  const std::vector<std::int64_t> documents =
      data::TokenDataset(std::vector<fs::path>{tiny_.file("documents.h5")}, wrong.data.sequence_length)
          .read(sequence, {})
          .document_starts;
  ASSERT_GT(documents.size(), 2u);
  std::array<std::int64_t, 3> updates{};
  const auto end_of_all = [&](const char* name, const std::function<void(plan::Plan&)>& change) {
    updates = {};
    return messages(3, [&](int rank) {
      Hooks hooks;
      hooks.updated = [&updates, rank](std::int64_t step, const Buffers&) {
        updates[static_cast<std::size_t>(rank)] = step;
      };
      hooks.make_plan = [&, rank](const std::string& schedule, const plan::Problem& problem,
                                  plan::Pass pass) {
        plan::Plan plan = plan::make_plan(schedule, problem, pass);
        const auto starts = problem.mask.document_starts();
        const bool is_it = starts.size() == documents.size() + 1 &&
                           std::equal(documents.begin(), documents.end(), starts.begin());
        if (rank == 1 && is_it) change(plan);
        return plan;
      };
      return std::pair(copy(wrong, fmt::format("{} {}", name, rank)), hooks);
    });
  };
  const auto expect_two_updates = [&] { EXPECT_THAT(updates, Each(2)); };

  EXPECT_THAT(end_of_all("step",
                         [](plan::Plan& plan) {
                           plan.step = [inner = plan.step](int rank, int number) {
                             plan::Step step = inner(rank, number);
                             step.computes.clear();
                             return step;
                           };
                         }),
              Each(mentions("sequence 10 of the data", "is never computed")));
  expect_two_updates();
  EXPECT_THAT(
      end_of_all(
          "documents",
          [](plan::Plan& plan) {
            plan.problem.mask = plan.problem.mask.with_other_documents(std::vector<std::int64_t>{0, 5});
          }),
      Each(mentions("sequence 10 of the data", "document starts", "rank 1")));
  expect_two_updates();
  const std::vector<std::string> thrown = end_of_all("error", [](plan::Plan&) { fail("the disk is gone"); });
  for (const int rank : {0, 2})
    EXPECT_THAT(thrown[static_cast<std::size_t>(rank)],
                mentions("sequence 10 of the data", "the disk is gone", "found on rank 1"));
  EXPECT_THAT(thrown[1], mentions("sequence 10 of the data", "the disk is gone"));
  expect_two_updates();
}

// Batches of 4 sequences, 4 and 8.
TEST_F(Balanced, GroupsShareWhatGrowingStepsRead) {
  const auto growing = [&](const std::string& layout, int ranks, int context) {
    return config(fmt::format("{} {}", ranks, context), layout,
                  {fmt::format("parallel.context={}", context),
                   fmt::format("train.micro_batches={}", 8 / (ranks / context)), "train.sequences_per_pass=1",
                   "train.ramp_start=4", "train.ramp_increment=4", "train.ramp_sequences=8"});
  };
  const Config one = growing("striped", 1, 1);
  run(1, one);
  EXPECT_EQ(metric(one, "tokens"), (std::vector<double>{4 * 199, 8 * 199, 16 * 199}));
  for (const auto& [ranks, context] : {std::pair{4, 2}, {4, 1}, {2, 2}}) {
    const Config dealt = growing("balanced", ranks, context);
    run(ranks, dealt);
    expect_near(losses(dealt), losses(one));
    EXPECT_EQ(metric(dealt, "tokens"), metric(one, "tokens"));
    EXPECT_LT(difference(one, dealt), limit);
    expect_same_when_resumed(dealt, ranks, copy(dealt, "resumed"));
  }
}

TEST_F(Balanced, WhatDoesNotGoWithItIsRefusedByName) {
  const auto refusal = [&](const std::vector<std::string>& sets) {
    return error_text([&] { config("refused", "balanced", sets); });
  };
  EXPECT_THAT(refusal({"memory.recompute=sequence-selective"}),
              mentions("attention.layout = 'balanced'", "sequence-selective", "striped"));
  EXPECT_THAT(run_error(2, config("refused", "balanced", {"attention.schedule=helper-worker"})),
              mentions("schedule helper-worker", "layout balanced"));
  EXPECT_THAT(refusal({"attention.mask=causal", "attention.sparsity=vertical-slash:recall=0.9,window=64"}),
              mentions("attention.layout = 'balanced'", "attention.sparsity"));
}

}  // namespace
}  // namespace annulus::training::test
