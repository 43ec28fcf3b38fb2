// How long a run is, how its learning rate goes, and how its batches grow.

#include "training/run/config/batch_schedule.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

Config::Train ramp(std::int64_t micro_batches, std::int64_t start, std::int64_t increment,
                   std::int64_t sequences) {
  Config::Train train;
  train.micro_batches = micro_batches;
  train.ramp_start = start;
  train.ramp_increment = increment;
  train.ramp_sequences = sequences;
  return train;
}

TEST(BatchSchedule, GrowsStepByStepAndCountsWhatWasRead) {
  // Sizes 2, 4, 6 for 10 sequences each, as steps end: 2 · 5, 4 · 3 (22), 6 · 2 (34), then 8.
  const std::vector<std::int64_t> expected = {2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8, 8, 8};
  for (const auto& [groups, micro_batches] : {std::pair(1, 8), {2, 4}}) {
    const BatchSchedule batches(ramp(micro_batches, 2, 2, 30), groups);
    std::int64_t read = 0;
    for (std::size_t step = 0; step < expected.size(); ++step) {
      const auto s = static_cast<std::int64_t>(step);
      EXPECT_EQ(batches.of_step(s), expected[step]) << step;
      EXPECT_EQ(batches.before(s), read) << step;
      EXPECT_EQ(batches.steps_for(read), s);
      EXPECT_EQ(batches.steps_for(read + 1), s + 1);
      read += expected[step];
    }
  }
  // A ramp that is over within steps leaves sizes out.
  const BatchSchedule steep(ramp(8, 2, 1, 3), 1);
  EXPECT_EQ(steep.of_step(0), 2);
  EXPECT_EQ(steep.of_step(1), 6);
  EXPECT_EQ(steep.of_step(2), 8);
}

TEST(BatchSchedule, RefusesWhatDoesNotDivide) {
  EXPECT_THAT(error_text([] { BatchSchedule(ramp(4, 3, 1, 30), 2); }), HasSubstr("train.ramp_start = 3"));
  EXPECT_THAT(error_text([] { BatchSchedule(ramp(4, 2, 4, 30), 2); }),
              HasSubstr("does not come to the 8 of 2 data-parallel groups"));
  EXPECT_THAT(error_text([] { BatchSchedule(ramp(4, 8, 2, 30), 2); }), HasSubstr("train.ramp_start = 8"));
}

class Lengths : public TinyTest {};

TEST_F(Lengths, InTokensAndEpochsAreSteps) {
  const Config steps = tiny_.config("steps", {"train.micro_batches=2"});  // six of 100 tokens
  run(2, steps);
  Config tokens = tiny_.config("tokens", {"train.micro_batches=2", "train.steps=0", "train.tokens=501"});
  Config epochs = copy(tokens, "in epochs");
  epochs.train.tokens = 0;
  epochs.train.epochs = 12.0 / 352;  // of 352 sequences
  for (const Config& config : {tokens, epochs}) {
    const Outcome outcome = run(2, config);
    EXPECT_EQ(outcome.last_step, 6);
    EXPECT_EQ(outcome.steps, 6);
    EXPECT_EQ(losses(config), losses(steps));
    EXPECT_EQ(metric(config, "lr"), metric(steps, "lr"));
    EXPECT_EQ(metric(config, "steps"), metric(steps, "steps"));
    expect_same_state(state_of(config, checkpoint_of(config, 6)), last_state(steps));
    EXPECT_THAT(log_of(config), HasSubstr("6 optimizer steps"));
  }
  EXPECT_THAT(log_of(tokens), HasSubstr("length     train.tokens = 501: 6 optimizer steps"));
  // Longer, on other ranks, along the same curve.
  tokens.train.tokens = 800;
  const Outcome longer = run(3, tokens);
  EXPECT_EQ(longer.first_step, 6);
  EXPECT_EQ(longer.last_step, 8);
  EXPECT_EQ(metric(tokens, "lr").back(), tokens.train.min_lr);
  EXPECT_THAT(log_of(tokens), HasSubstr("the learning rate is at train.min_lr"));
  // What config.toml says is the same run again.
  const Config again = Config::load(fs::path(tokens.run.folder) / "config.toml");
  EXPECT_EQ(run(2, again).first_step, 8);
  EXPECT_THAT(log_of(tokens),
              HasSubstr("nothing to do: 8 of 8 optimizer steps are done (raise train.tokens"));
}

TEST_F(Lengths, OneKeyAloneSaysIt) {
  EXPECT_THAT(refusal({"train.tokens=5000"}),
              mentions("train.steps = 6 and train.tokens = 5000", "leave all but one"));
  EXPECT_THAT(refusal({"train.steps=0", "train.tokens=5000", "train.epochs=1.5"}),
              HasSubstr("train.tokens = 5000 and train.epochs = 1.5"));
  EXPECT_THAT(refusal({"train.steps=0"}), HasSubstr("one of train.steps, train.tokens and train.epochs"));
  EXPECT_EQ(tiny_.config("run", {"train.steps=0", "train.tokens=1k"}).train.tokens, 1024);
  const Config parsed = Config::parse("[train]\ntokens = 1000\n", "run.toml");
  EXPECT_EQ(parsed.train.steps, 0);
  EXPECT_EQ(Config::parse(parsed.to_toml(), "config.toml").to_toml(), parsed.to_toml());
  // A warm-up that does not fit is found when the data are known.
  Config config = tiny_.config("run", {"train.steps=0", "train.tokens=100", "train.warmup_steps=3"});
  EXPECT_THAT(run_error(2, config), HasSubstr("train.warmup_steps = 3"));
  EXPECT_FALSE(fs::exists(config.run.folder));
}

TEST_F(Lengths, ADecayStartsWhenARunGoesOn) {
  for (const int zero : {0, 3}) {
    Config config = tiny_.wide("stable", zero, {"train.schedule=constant", "train.steps=3"});
    run(2, config);
    EXPECT_EQ(metric(config, "lr"), (std::vector<double>{0.005, 0.01, 0.01}));
    config = with(config, {"train.schedule=wsd", "train.decay_steps=3", "train.steps=6"});
    EXPECT_EQ(run(2, config).first_step, 3);
    const auto rates = metric(config, "lr");
    EXPECT_DOUBLE_EQ(rates[3], 0.007);
    EXPECT_DOUBLE_EQ(rates[4], 0.004);
    EXPECT_DOUBLE_EQ(rates[5], 0.001);
    EXPECT_THAT(log_of(config), mentions("the learning rate takes another curve",
                                         "schedule = 'wsd', decay_steps = 3", "schedule = 'constant'"));
    // As if it had been known from the start.
    const Config whole = tiny_.wide("whole", zero, {"train.schedule=wsd", "train.decay_steps=3"});
    run(2, whole);
    expect_same_bits(whole, config);
  }
  EXPECT_THAT(refusal({"train.schedule=step"}), mentions("train.schedule = 'step'", "wsd"));
  EXPECT_THAT(refusal({"train.decay_steps=2"}), HasSubstr("train.schedule = 'wsd'"));
  EXPECT_THAT(refusal({"train.schedule=wsd", "train.decay_steps=5"}), HasSubstr("train.decay_steps = 5"));
}

TEST_F(Lengths, BatchesGrowAlikeOnAnyRanks) {
  const std::vector<std::string> sets = {"train.ramp_start=2", "train.ramp_increment=2",
                                         "train.ramp_sequences=6", "train.micro_batches=8"};
  const Config one = tiny_.config("one", sets);  // 2 sequences, 4, of which the size 6 leaves none, then 8
  run(1, one);
  EXPECT_EQ(metric(one, "tokens"), (std::vector<double>{100, 300, 700, 1100, 1500, 1900}));
  const std::vector<std::string> of_two = {"train.micro_batches=4", "parallel.context=1"};
  const Config two = with(tiny_.wide("two", 0, sets), of_two),
               zero = with(tiny_.wide("two", 3, sets), of_two), groups = copy(one, "groups", of_two);
  for (const Config& config : {two, zero, groups}) {
    run(2, config);
    EXPECT_EQ(metric(config, "tokens"), metric(one, "tokens"));
  }
  EXPECT_LT(largest_difference(losses(two), losses(zero)), 2e-5);
  EXPECT_LT(largest_difference(losses(one), losses(groups)), 2e-5);
  EXPECT_EQ(last_state(one).progress.sequences_read, 38);
  expect_same_when_resumed(one, 1, copy(one, "resumed"));
  expect_same_when_resumed(zero, 2, copy(zero, "resumed"));
  // On other ranks, in tokens.
  const Config other = copy(groups, "other", {"train.steps=0", "train.tokens=1900"});
  interrupt(one, 3, other);
  EXPECT_EQ(run(2, other).last_step, 6);
  EXPECT_LT(largest_difference(losses(one), losses(other)), 2e-5);

  Config wrong = copy(groups, "wrong");
  EXPECT_THAT(run_error(3, wrong), mentions("train.ramp_start = 2", "multiples of 3"));
  EXPECT_FALSE(fs::exists(wrong.run.folder));
  EXPECT_THAT(refusal({"train.ramp_start=2"}), HasSubstr("go together"));
  wrong = copy(one, "wrong", {"train.ramp_sequences=7"});
  interrupt(one, 3, wrong);
  EXPECT_THAT(run_error(1, wrong), HasSubstr("train.ramp_sequences = 7 differs from 6"));
}

}  // namespace
}  // namespace annulus::training::test
