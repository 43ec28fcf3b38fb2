// train.optimizer and train.decay in runs: Muon under every stage, checkpoints, and which tensors decay.

#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

class Optimizers : public TinyTest {
 protected:
  Config muon(const std::string& name, int zero, const std::vector<std::string>& sets = {}) const {
    return with(
        tiny_.wide(name, zero, {"train.optimizer=muon", "train.clip_norm=0.1", "train.check_replicas=1"}),
        sets);
  }
};

TEST_F(Optimizers, MuonHasTheSameBitsUnderEveryStage) {
  for (const auto& [ranks, dtype] : {std::pair(2, "f32"), {3, "bf16"}}) {
    const std::string set = fmt::format("train.dtype={}", dtype);
    const Config whole = muon(dtype, 0, {set});
    run(ranks, whole);
    for (const int zero : {1, 2, 3}) expect_same_run(whole, ranks, muon(dtype, zero, {set}));
  }
}

TEST_F(Optimizers, MuonInGroupsAgreesWithOneCopy) {
  const Config whole = muon("whole", 0);
  run(4, whole);
  const Config groups = muon("groups", 3, {"parallel.shard=2"});
  run(4, groups);
  EXPECT_LT(difference(whole, groups), 2e-5);
}

TEST_F(Optimizers, MuonGoesOnBitForBitAndOnOtherRanks) {
  const Config whole = muon("whole", 0), shards = muon("shards", 3, {"train.dtype=bf16"});
  run(2, whole);
  run(2, shards);
  expect_same_when_resumed(whole, 2, copy(whole, "resumed"));
  expect_same_when_resumed(shards, 2, copy(shards, "resumed"));
  expect_same_when_resumed(whole, 2, copy(whole, "others", {"parallel.zero=2"}));
  const Config three = copy(whole, "three", {"parallel.zero=3"});
  interrupt(whole, 3, three);
  run(3, three);
  EXPECT_LT(difference(whole, three), 1e-3);
  // AdamW's second moment is of what AdamW updates alone.
  const model::ParameterMap map(whole.model);
  const State state = last_state(whole);
  for (const model::Parameter& p : map.all()) {
    const auto second = state.second_moment.begin() + p.offset, first = state.first_moment.begin() + p.offset;
    const auto is_zero = [](float value) { return value == 0; };
    EXPECT_EQ(std::all_of(second, second + p.size(), is_zero), p.kind == model::TensorKind::matrix) << p.name;
    EXPECT_FALSE(std::all_of(first, first + p.size(), is_zero)) << p.name;
  }
}

TEST_F(Optimizers, MuonLearns) {
  const Config config =
      tiny_.config("run", {"train.optimizer=muon", "train.steps=60", "train.warmup_steps=5"});
  EXPECT_LT(run(1, config).last_loss, 3.2);
}

TEST_F(Optimizers, WhatDoesNotGoTogetherNamesTheKey) {
  EXPECT_THAT(refusal({"train.optimizer=muon", "memory.offload_optimizer=true"}),
              mentions("memory.offload_optimizer = true", "train.optimizer = 'muon'", "parallel.zero"));
  EXPECT_THAT(refusal({"train.optimizer=lion"}), mentions("train.optimizer = 'lion'", "adamw and muon"));
  EXPECT_THAT(refusal({"train.momentum=0.9"}), mentions("train.momentum = 0.9", "muon"));
  EXPECT_THAT(refusal({"train.optimizer=muon", "train.momentum=1"}), HasSubstr("train.momentum = 1"));
  EXPECT_THAT(refusal({"train.decay=gates"}), mentions("train.decay: 'gates'", "biases"));
  // Moments of one say nothing to the other, in a branch either.
  const Config whole = tiny_.config("whole", {"train.steps=3"});
  run(1, whole);
  Config branch = tiny_.config("branch", {"train.optimizer=muon"});
  EXPECT_THAT(run_error(1, branch, ResumePolicy::parse(checkpoint_of(whole, 3).string())),
              HasSubstr("train.optimizer = 'muon' differs from 'adamw'"));
}

TEST_F(Optimizers, DecayIsOfTheTensorsThatAreNamed) {
  const Config base = tiny_.config("base", {"train.steps=1", "train.warmup_steps=0", "train.weight_decay=0.5",
                                            "model.qk_norm=head", "model.qkv_bias=true"});
  const auto state = [&](const std::string& name, const std::vector<std::string>& decay) {
    const Config config = copy(base, name, decay);
    run(1, config);
    return last_state(config);
  };
  const model::ParameterMap map(base.model);
  const State none = state("none", {"train.decay=[]"});
  for (const auto& [name, kind] : {std::pair("matrices", model::TensorKind::matrix),
                                   {"lm_head", model::TensorKind::lm_head},
                                   {"embedding", model::TensorKind::embedding},
                                   {"norms", model::TensorKind::norm}}) {
    const State some = state(name, {fmt::format("train.decay=['{}']", name)});
    for (const model::Parameter& p : map.all()) {
      const auto a = none.parameters.begin() + p.offset, b = some.parameters.begin() + p.offset;
      EXPECT_EQ(std::equal(a, a + p.size(), b), p.kind != kind) << name << ", " << p.name;
    }
  }
  // Those of which nothing is said.
  expect_same_state(state("default", {"train.decay=['matrices', 'lm_head']"}), state("not given", {}));
}

}  // namespace
}  // namespace annulus::training::test
