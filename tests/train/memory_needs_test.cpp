// Models that cannot fit are refused at the start, with what takes most and what to do about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include <annulus/train/plan_memory.hpp>

#include "support/error_text.hpp"
#include "support/exec.hpp"
#include "train/compare_runs.hpp"
#include "train/tiny_run.hpp"

namespace annulus::train {
namespace {

using annulus::test::error_text;
using annulus::test::on_host;
using annulus::train::test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;

class MemoryNeeds : public testing::Test {
 protected:
  /// What a run on two ranks says where so many bytes are free for each.
  static std::string message(const Config& config, std::int64_t free) {
    Hooks hooks;
    (on_host ? hooks.host_memory : hooks.device_memory) = on_host ? 2 * free : free;
    return error_text([&] { annulus::train::test::run(2, config, {}, hooks); });
  }
  static std::int64_t predicted(const Config& config) {
    return annulus::train::test::predicted_peak(2, config);
  }
  const TinyRun tiny_;
};

TEST_F(MemoryNeeds, TheStateOfTheModelNamesShards) {
  Config config = tiny_.config("run");
  config.train.steps = 2;
  config.train.micro_batches = config.train.sequences_per_pass = 2;
  const model::ParameterMap map(config.model);  // 16 bytes a parameter
  const std::int64_t needed = predicted(config);
  ASSERT_GT(needed, 16 * map.size());
  EXPECT_THAT(message(config, needed - 1),
              AllOf(HasSubstr("the run does not fit: an optimizer step takes " +
                              annulus::detail::bytes_text(needed) + " of"),
                    HasSubstr("parameters " + annulus::detail::bytes_text(4 * map.size()) + ", gradients "),
                    HasSubstr("optimizer " + annulus::detail::bytes_text(8 * map.size())),
                    HasSubstr("activations "), HasSubstr("workspace "), HasSubstr("communication "),
                    // On a GPU the workspace of cuBLAS is most of it.
                    HasSubstr(on_host ? "parallel.zero = 1, 2 or 3" : "spread the sequence over more GPUs"),
                    HasSubstr(" are free on the machine ")));
  EXPECT_FALSE(std::filesystem::exists(config.run.folder));  // nothing was begun
  EXPECT_EQ(message(config, needed), "no error");
}

TEST_F(MemoryNeeds, ALongSequenceNamesMoreRanks) {
  Config config = tiny_.config("run");
  config.data.sequence_length = 5000;
  EXPECT_THAT(message(config, 1'000'000),
              AllOf(HasSubstr("the run does not fit"),
                    HasSubstr(on_host ? "spread the sequence over more ranks on other machines"
                                      : "spread the sequence over more GPUs")));
}

TEST_F(MemoryNeeds, RanksOfAMachineShareItsMemory) {
  if (!on_host) GTEST_SKIP() << "of the host";
  Config config = tiny_.config("run");
  EXPECT_THAT(message(config, 1000), HasSubstr(" for the 2 ranks of the machine, and 2000 bytes are free"));
}

// The fastest of what fits: everything kept where there is room, and less where there is not.
TEST_F(MemoryNeeds, AutoTakesWhatFits) {
  Config config = tiny_.config("auto");
  config.model.layers = 4;
  config.data.sequence_length = 2000;
  config.train.steps = 1;
  config.train.warmup_steps = 0;
  const auto with = [&](const char* policy) {
    Config changed = config;
    changed.memory.recompute = {policy};
    return predicted(changed);
  };
  config.memory.recompute = {"auto"};
  const std::int64_t spare = on_host ? 0 : std::int64_t{3} << 29;  // of a GPU, which stays free
  const auto taken = [&](std::int64_t free) {
    std::filesystem::remove_all(config.run.folder);
    EXPECT_EQ(message(config, free + spare), "no error");
    return annulus::train::test::log_of(config);
  };
  EXPECT_THAT(taken(with("none")), HasSubstr("memory.recompute = 'auto' took none: predicted"));
  EXPECT_THAT(taken(with("none") - 1),
              AllOf(HasSubstr("memory.recompute = 'auto' took "), HasSubstr("of what would be faster none ("),
                    HasSubstr(" lacks ")));
  // Between two policies: the last layers keep everything.
  Config some = config;
  some.memory.recompute = {"selective"};
  some.memory.layers_without_recompute = 1;
  EXPECT_THAT(taken(predicted(some)), HasSubstr(" but for the last "));
  EXPECT_THAT(message(config, 100'000),
              AllOf(HasSubstr("memory.recompute = 'auto': nothing fits"), HasSubstr("the run does not fit")));
}

TEST_F(MemoryNeeds, SizesAreReadWithTheirUnits) {
  EXPECT_EQ(parse_bytes("141GB", "--gpu-memory"), 141'000'000'000);
  EXPECT_EQ(parse_bytes("1.5 GiB", "--gpu-memory"), 1'610'612'736);
  EXPECT_EQ(parse_bytes("1234", "--gpu-memory"), 1234);
  for (const char* wrong : {"", "GB", "-1GB", "80 gigabytes", "0"})
    EXPECT_THAT(error_text([&] { parse_bytes(wrong, "--gpu-memory"); }),
                HasSubstr(std::string("--gpu-memory '") + wrong + "': give bytes"));
}

}  // namespace
}  // namespace annulus::train
