// Training in the steady state allocates nothing inside a step.
#include "support/allocations.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

TEST(Allocations, NoneInASteadyStep) {
  constexpr int warm_up = 2;  // steps
  const TinyRun tiny;
  for (const std::string dtype : {"f32", "bf16"}) {
    for (const int ranks : {1, 2}) {
      Config config = tiny.config(dtype + std::to_string(ranks));
      config.attention.mask = "causal";  // documents bring new plans
      config.train.dtype = dtype;
      config.train.micro_batches = 2 * ranks;
      config.train.sequences_per_pass = ranks;
      config.checkpoint.every = 0;  // at the end, which does not count
      annulus::test::Allocations allocations;
      Hooks hooks;
      hooks.updated = [&](std::int64_t step, const Buffers&) {
        if (step <= warm_up) allocations.clear();
        if (step < config.train.steps) return;
        EXPECT_THAT(allocations.labels(), testing::IsEmpty()) << dtype << " on " << ranks << " ranks";
      };
      EXPECT_EQ(run(ranks, config, {}, hooks).last_step, config.train.steps);
    }
  }
}

}  // namespace
}  // namespace annulus::training::test
