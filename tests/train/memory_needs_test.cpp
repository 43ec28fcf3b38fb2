// Models that cannot fit are refused at the start, with what takes most and what to do about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/model/activation_memory.hpp>
#include <filesystem>
#include <string>

#include "support/error_text.hpp"
#include "support/exec.hpp"
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
  const TinyRun tiny_;
};

TEST_F(MemoryNeeds, TheStateOfTheModelNamesShards) {
  Config config = tiny_.config("run");
  config.train.steps = 2;
  config.train.micro_batches = config.train.sequences_per_pass = 2;
  // 16 bytes a parameter; 25 rows of each sequence on each rank, at least.
  const model::ParameterMap map(config.model);
  const std::int64_t state = 16 * map.size(),
                     activations = model::activation_memory(config.model, {.sequences = 2, .tokens = 25},
                                                            DType::f32, {})
                                       .device();
  ASSERT_GT(state, activations);
  EXPECT_THAT(message(config, state + activations - 1),
              AllOf(HasSubstr("the model does not fit: its state and its activations take " +
                              std::to_string(state + activations) + " bytes of"),
                    HasSubstr("parameters " + std::to_string(4 * map.size()) + " bytes, gradients "),
                    HasSubstr("optimizer " + std::to_string(8 * map.size()) + " bytes"),
                    HasSubstr("activations " + std::to_string(activations) + " bytes"),
                    HasSubstr("parallel.zero = 1, 2 or 3"), HasSubstr(" are free on the machine ")));
  EXPECT_FALSE(std::filesystem::exists(config.run.folder));  // nothing was begun
  EXPECT_EQ(message(config, state + activations), "no error");
}

TEST_F(MemoryNeeds, ALongSequenceNamesMoreRanks) {
  Config config = tiny_.config("run");
  config.data.sequence_length = 5000;
  EXPECT_THAT(message(config, 1'000'000),
              AllOf(HasSubstr("the model does not fit"),
                    HasSubstr(on_host ? "spread the sequence over more ranks on other machines"
                                      : "spread the sequence over more GPUs")));
}

TEST_F(MemoryNeeds, RanksOfAMachineShareItsMemory) {
  if (!on_host) GTEST_SKIP() << "of the host";
  Config config = tiny_.config("run");
  EXPECT_THAT(message(config, 1000),
              HasSubstr("bytes for the 2 ranks of the machine, and 2000 bytes are free"));
}

}  // namespace
}  // namespace annulus::train
