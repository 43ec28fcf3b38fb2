// attention.layout = 'balanced': every batch is cut for its documents, and nothing else changes.

#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include <annulus/attention/plan/schedules.hpp>

#include "training/data/dataset.hpp"
#include "training/io/atomic.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

/// Runs on documents of 1 to some hundred tokens, in sequences of 199.
class Balanced : public TinyTest {
 protected:
  Balanced() {
    std::mt19937 random(7);
    std::vector<std::int64_t> documents;
    for (std::int64_t tokens = 0; tokens < 199 * 30; tokens += documents.back())
      documents.push_back(1 + static_cast<std::int64_t>(random() % 5 == 0 ? random() % 300 : random() % 40));
    tiny_.shard("documents.h5", documents);
  }

  /// Three optimizer steps of four sequences.
  Config config(const std::string& name, const std::string& layout,
                const std::vector<std::string>& sets = {}) const {
    return with(
        tiny_.wide(name + ' ' + layout, 0,
                   {"data.shards=" + tiny_.file("documents.h5").string(), "attention.layout=" + layout,
                    "attention.mask=documents", "data.sequence_length=199", "attention.schedule=all-gather",
                    "model.heads=4", "model.kv_heads=2", "train.micro_batches=4",
                    "train.sequences_per_pass=2", "train.steps=3", "train.clip_norm=0.1"}),
        sets);
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
    for (const char* const layout :
         {"contiguous", "zigzag", "striped", "block-striped:16", "balanced", "balanced in groups"}) {
      const bool groups = std::string_view(layout).ends_with(" in groups");
      if (groups && ranks != 4) continue;
      SCOPED_TRACE(fmt::format("{} on {} ranks", layout, ranks));
      const Config shared = groups ? config("groups", "balanced", {"attention.schedule=hybrid:2x2"})
                                   : config(fmt::format("{}", ranks), layout);
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
  std::vector<std::int64_t> documents;  // of ten sequences
  for (std::int64_t tokens = 0; tokens < 199 * 10 + 1; tokens += documents.back())
    documents.push_back(std::min<std::int64_t>(1 + 37 * std::ssize(documents) % 90, 199 * 10 + 1 - tokens));
  tiny_.shard("ten.h5", documents);
  const Config whole =
      config("whole", "balanced", {"train.steps=5", "data.shards=" + tiny_.file("ten.h5").string()});
  run(3, whole);
  // The resumed runs begin inside of the second epoch.
  const checkpoint::Progress begin = state_of(whole, checkpoint_of(whole, 3)).progress;
  EXPECT_EQ(begin.epoch, 1);
  EXPECT_GT(begin.sequences_read, 0);
  EXPECT_LT(begin.sequences_read, 10);
  expect_same_run(whole, 3, copy(whole, "again"));
  expect_same_when_resumed(whole, 3, copy(whole, "resumed"));
  const Config on_four = copy(whole, "on four");
  interrupt(whole, 3, on_four);
  run(4, on_four);
  expect_near(losses(on_four), losses(whole));
  EXPECT_LT(difference(whole, on_four), limit);
}

TEST_F(Balanced, MetricsTellHowEvenlyItIsDealtOut) {
  const auto cuts = [](const Config& of) {
    std::vector<nlohmann::json> all;
    for (const nlohmann::json& record : records(of))
      if (record.contains("cut")) all.push_back(record.at("cut"));
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

// Sequences of a step go to the groups by their pairs, eight each time or 4, 8 and 16; the loss is the mean
// over all their tokens.
TEST_F(Balanced, GroupsShareWhatAStepReads) {
  using Sets = std::vector<std::string>;
  for (const Sets& sets : {Sets{"train.sequences_per_pass=2"},
                           {"train.sequences_per_pass=1", "train.ramp_start=4", "train.ramp_increment=4",
                            "train.ramp_sequences=8"}}) {
    const Config one = copy(config("groups", "striped", {"train.micro_batches=8"}), sets.back(), sets);
    run(1, one);
    if (sets.size() > 1) {
      EXPECT_EQ(metric(one, "tokens"), (std::vector<double>{4 * 199, 8 * 199, 16 * 199}));
    }
    for (const auto& [ranks, context] : {std::pair{4, 2}, {4, 1}, {2, 1}, {2, 2}}) {
      const Config dealt = copy(one, fmt::format("{} {}", ranks, context),
                                {"attention.layout=balanced", fmt::format("parallel.context={}", context),
                                 fmt::format("train.micro_batches={}", 8 / (ranks / context))});
      run(ranks, dealt);
      expect_near(losses(dealt), losses(one));
      for (const char* key : {"targets", "tokens"}) EXPECT_EQ(metric(dealt, key), metric(one, key));
      EXPECT_LT(difference(one, dealt), limit);
      expect_same_when_resumed(dealt, ranks, copy(dealt, "resumed"));
    }
  }
}

// Ranks without rows, sequences of a few tokens, documents of one.
TEST_F(Balanced, ShortSequencesAndDocumentsOfOneToken) {
  std::vector<std::int64_t> documents;
  for (int i = 0; i < 160; ++i) documents.push_back(i % 4 == 2 ? 2 : 1);
  const std::string shard = tiny_.shard("single.h5", documents);
  const auto short_one = [&](const std::string& name, const std::string& layout) {
    return config(name, layout,
                  {"data.shards=" + shard, "data.sequence_length=3", "train.sequences_per_pass=4"});
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
  // Each sequence has one document with most of the pairs, on fewer rows than a rank has, and pairs of
  // tokens, which striped ranks do not share evenly. So slow are kernels that the busiest rank's pairs
  // decide.
  std::vector<std::int64_t> documents;
  for (int sequence = 0; sequence < 30; ++sequence) {
    documents.push_back(45);
    documents.insert(documents.end(), 77, 2);
  }
  tiny_.shard("pairs.h5", documents);
  const std::string slow = tiny_.file("slow.toml").string();
  io::write_text_atomically(slow,
                            "[[kernel]]\npass = \"forward\"\nhead_dim = 8\nrate = 1e3\n"
                            "[[kernel]]\npass = \"backward\"\nhead_dim = 8\nrate = 1e3\n",
                            Links::refuse);
  const std::vector<std::string> sets = {"data.shards=" + tiny_.file("pairs.h5").string(),
                                         "attention.cluster=" + slow, "attention.schedule=all-gather"};
  EXPECT_EQ(run(4, config("auto", "auto", sets)).layout, "balanced");
  const Config fixed =
      with(config("auto with early positions", "auto", sets), {"memory.recompute=sequence-selective"});
  EXPECT_NE(run(4, fixed).layout, "balanced");
}

TEST_F(Balanced, ValidationIsThatOfEveryLayout) {
  const auto validation = [&](const std::string& layout, int ranks, int length) {
    const Config of = config(
        fmt::format("{} {}", ranks, length), layout,
        {"data.validation=own=" + tiny_.file("documents.h5").string(), "train.validate_every=2",
         "train.validate_sequences=5", "train.steps=2", fmt::format("data.validation_length={}", length)});
    run(ranks, of);
    const nlohmann::json own = records(of).back().at("validation").at("own");
    return std::vector<double>{own.at("loss"), own.at("targets")};
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
