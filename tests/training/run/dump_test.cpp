// The tensors of an optimizer step: the same from any number of ranks in any layout, and training goes on as
// without.

#include <set>

#include "support/shell.hpp"
#include "training/io/hdf5_files/hdf5.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

class DumpTest : public TinyTest {
 protected:
  /// Two sequences per optimizer step, on any number of ranks.
  Config config(const std::string& name, int ranks, int context, const char* layout) const {
    return tiny_.config(
        name, {"model.layers=2", "train.steps=3", fmt::format("train.micro_batches={}", 2 * context / ranks),
               fmt::format("parallel.context={}", context), fmt::format("attention.layout={}", layout)});
  }

  static void train(int ranks, const Config& config, const DumpRequest& dump) {
    run(ranks, config, {}, {}, dump);
  }

  std::string file(const std::string& name) const { return tiny_.file(name).string(); }
  /// EXPECTs that annulus-diff finds no difference; what it prints.
  static std::string expect_same(const std::string& a, const std::string& b, const char* options = "") {
    const auto diff =
        annulus::test::run_shell(fmt::format("'{}' {} '{}' '{}'", ANNULUS_DIFF_PROGRAM, options, a, b));
    EXPECT_EQ(diff.status, 0) << diff.output;
    return diff.output;
  }
};

TEST_F(DumpTest, IsTheSameFromAnyRanksInAnyLayout) {
  train(1, config("one", 1, 1, "contiguous"), {file("one.h5"), 2});
  struct {
    int ranks, context;
    const char* layout;
  } const cases[] = {{3, 3, "zigzag"}, {2, 1, "contiguous"}, {4, 2, "striped"}};
  for (const auto& [ranks, context, layout] : cases) {
    const std::string name = fmt::format("{}-ranks", ranks);
    train(ranks, config(name, ranks, context, layout), {file(name + ".h5"), 2});
    EXPECT_THAT(expect_same(file("one.h5"), file(name + ".h5")), HasSubstr(fmt::format("{} ranks", ranks)));
  }
}

// Every sequence of a pass has runs of rows of its own.
TEST_F(DumpTest, IsTheSameFromBalancedCuts) {
  const auto dump_of = [&](int ranks, const char* layout) {
    const std::string name = fmt::format("{} {}", ranks, layout), path = file(name + ".h5");
    train(ranks,
          with(config(name, ranks, ranks, layout),
               {"data.sequence_length=300", "attention.mask=documents", "train.micro_batches=4",
                "train.sequences_per_pass=4", "train.steps=2"}),
          {path, 2});
    return path;
  };
  expect_same(dump_of(1, "contiguous"), dump_of(3, "balanced"));
}

TEST_F(DumpTest, HoldsTheSameSequencesHoweverManyAPassHas) {
  struct {
    int ranks, context;
    const char* mask;
  } const cases[] = {{1, 1, "causal"}, {4, 2, "documents"}};  // two groups take sequences in turns
  for (const auto& [ranks, context, mask] : cases) {
    for (const int sequences : {1, 2, 4})
      train(ranks,
            with(config(fmt::format("{} {}", ranks, sequences), ranks, context, "zigzag"),
                 {"data.sequence_length=300", fmt::format("attention.mask={}", mask), "train.micro_batches=4",
                  fmt::format("train.sequences_per_pass={}", sequences), "train.steps=2"}),
            {file(fmt::format("{}.h5", sequences)), 2});
    const io::File one = io::File::open(file("1.h5"));
    for (const int sequences : {2, 4}) {
      const std::string other = file(fmt::format("{}.h5", sequences));
      expect_same(file("1.h5"), other);
      for (const char* ids : {"tokens", "targets"})
        EXPECT_EQ(one.read<std::int32_t>(ids), io::File::open(other).read<std::int32_t>(ids));
    }
  }
}

TEST_F(DumpTest, HasTheSameBitsUnderEveryStageOfZero) {
  const auto with_zero = [&](int zero) {
    return tiny_.wide("run", zero, {"train.steps=3", "parallel.context=4"});
  };
  for (const int zero : {0, 1, 2, 3}) train(4, with_zero(zero), {file(fmt::format("{}.h5", zero)), 2});
  for (const int zero : {1, 2, 3})
    expect_same(file("0.h5"), file(fmt::format("{}.h5", zero)), "--tolerance 0");
  EXPECT_EQ(io::File::open(file("3.h5")).group("gradients").names(),
            io::File::open(file("0.h5")).group("gradients").names());
  // Copies in groups: other sums, the same tensors.
  train(4, copy(with_zero(3), "in groups", {"parallel.shard=2"}), {file("groups.h5"), 2});
  expect_same(file("0.h5"), file("groups.h5"));
}

TEST_F(DumpTest, HoldsTheSameTensorsWhateverIsComputedAgain) {
  struct {
    int ranks, zero;
    const char *schedule, *layout, *mask, *dtype;
  } const cases[] = {{2, 3, "burst", "zigzag", "documents", "f32"},
                     {2, 0, "ulysses", "striped", "causal", "bf16"},
                     {3, 0, "all-gather", "contiguous", "window:20,0", "f32"}};
  for (const auto& [ranks, zero, schedule, layout, mask, dtype] : cases) {
    const auto dump_with = [&](const char* recompute, int chunk_rows, const std::string& name) {
      const std::string path = file(fmt::format("{} {}.h5", schedule, name));
      train(ranks,
            with(config(fmt::format("{} {}", schedule, name), ranks, ranks, layout),
                 {fmt::format("attention.schedule={}", schedule), fmt::format("attention.mask={}", mask),
                  fmt::format("train.dtype={}", dtype), "train.micro_batches=2", "train.sequences_per_pass=2",
                  fmt::format("parallel.zero={}", zero), fmt::format("memory.recompute={}", recompute),
                  fmt::format("memory.chunk_rows={}", chunk_rows)}),
            {path, 2});
      return path;
    };
    const std::string none = dump_with("none", 0, "none");
    const auto compare = [&](const std::string& other, const char* tolerance) {
      SCOPED_TRACE(other);
      expect_same(none, other, tolerance);
      EXPECT_EQ(io::File::open(other).names(), io::File::open(none).names());
    };
    for (const char* recompute : {"full", "selective", "sequence-selective"})
      compare(dump_with(recompute, 0, recompute), "--tolerance 0");
    // Sums over rows, of the gradients of weights, have another order.
    compare(dump_with("sequence-selective", 7, "chunks"), "");
  }
}

TEST_F(DumpTest, HoldsEveryTensorOfTheUpdate) {
  const Config run = config("run", 1, 1, "zigzag");
  train(1, run, {file("step.h5"), 3});
  const io::File dump = io::File::open(file("step.h5"));
  EXPECT_EQ(dump.integer_attribute("step"), 3);
  EXPECT_EQ(dump.string_attribute("dtype"), "f32");
  Config effective = run;
  effective.train.schedule_steps = run.train.steps;  // settled when the run starts
  EXPECT_EQ(Config::parse(dump.string_attribute("config"), "the dump").to_toml(), effective.to_toml());

  std::set<std::string> expected = {"tokens",   "targets", "last", "normed",     "logits",
                                    "d_normed", "d_last",  "loss", "parameters", "gradients"};
  for (int layer = 0; layer < run.model.layers; ++layer)
    for (const char* name : {"input", "q", "k", "v", "out", "lse", "middle", "gate_up", "ffn", "d_ffn",
                             "d_gate_up", "d_middle", "d_out", "d_q", "d_k", "d_v", "d_input"})
      expected.insert(fmt::format("layers.{}.{}", layer, name));
  const auto names = dump.names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected);
  const model::ParameterMap map(run.model);
  for (const char* group : {"parameters", "gradients"})
    EXPECT_EQ(dump.group(group).names().size(), map.all().size());

  EXPECT_EQ(dump.dataset("layers.1.q").extents(), (io::Extents{2, 2, 50, 16}));
  EXPECT_EQ(dump.dataset("layers.1.d_k").extents(), (io::Extents{2, 1, 50, 16}));
  EXPECT_EQ(dump.dataset("layers.0.lse").extents(), (io::Extents{2, 2, 50}));
  EXPECT_EQ(dump.dataset("gradients/layers.0.ffn.gate").extents(), (io::Extents{40, 32}));
  EXPECT_EQ(dump.dataset("gradients/final_norm").extents(), (io::Extents{32}));
  EXPECT_EQ(dump.dataset("logits").extents(),
            (io::Extents{2, 50, io::Extents::value_type(run.model.vocabulary)}));
  EXPECT_NEAR(dump.read<double>("loss").at(0), losses(run).at(2), 1e-12);
  // Targets follow their tokens.
  const auto tokens = dump.read<std::int32_t>("tokens"), targets = dump.read<std::int32_t>("targets");
  for (std::size_t i = 0; i + 1 < 50; ++i)
    EXPECT_TRUE(targets[i] < 0 || targets[i] == tokens[i + 1]) << "target " << i << " is " << targets[i];
}

TEST_F(DumpTest, LeavesTheRunAsItIs) {
  const Config with = config("with", 2, 2, "zigzag"), without = config("without", 2, 2, "zigzag");
  train(2, with, {file("step.h5")});
  train(2, without, {});
  EXPECT_EQ(losses(with), losses(without));
  EXPECT_EQ(io::File::open(file("step.h5")).integer_attribute("step"), 1)
      << "the first unless told otherwise";
}

TEST_F(DumpTest, OfAnUpdateThatDoesNotComeIsRefused) {
  for (const auto& [to, step, said] :
       {std::tuple("step.h5", 4, "--dump-step 4"), {"none/step.h5", 1, "none"}})
    EXPECT_THAT(error_text([&] {
                  train(1, config("run", 1, 1, "zigzag"), {file(to), step});
                }),
                HasSubstr(said));
}

}  // namespace
}  // namespace annulus::training::test
