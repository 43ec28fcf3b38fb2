// Every kernel against the reference.
#include <gtest/gtest.h>

#include <annulus/base/dtype.hpp>

#include "attention/local_run.hpp"
#include "attention/masks.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

using attention::Kernel;

/// Layouts by which shards of any number are cut.
const std::vector<Layout> layouts = {Layout(Layout::Kind::contiguous), Layout(Layout::Kind::zigzag),
                                     Layout(Layout::Kind::striped), Layout(Layout::Kind::block_striped, 5)};

std::string describe(const AttentionProblem& problem, DType type, const LocalRun& run) {
  const AttentionShape& shape = problem.shape;
  return fmt::format(
      "{} tokens, head_dim {}, batch {}, heads {}/{}, {}, {}, {} shards {}, order {}, storage {}",
      shape.tokens, shape.head_dim, shape.batch, shape.heads, shape.kv_heads, problem.mask.to_string(),
      name_of(type), run.shards, run.layout.to_string(), run.order, static_cast<int>(run.storage));
}

/// Every test runs on every kernel.
class Local : public testing::TestWithParam<Kernel> {
 protected:
  /// Solves the problem and compares with the reference.
  void check(const AttentionProblem& problem, LocalRun run = {}, DType type = DType::f32,
             double tolerance = fp32_tolerance) const {
    check(problem, problem.reference(), run, type, tolerance);
  }
  void check(const AttentionProblem& problem, const AttentionResult& expected, LocalRun run = {},
             DType type = DType::f32, double tolerance = fp32_tolerance) const {
    run.kernel = GetParam();
    EXPECT_EQ(differences(run_local(exec, problem, type, run), expected, tolerance), "")
        << describe(problem, type, run);
  }

  const TestExec exec;
  const MaskTexts masks;
};

INSTANTIATE_TEST_SUITE_P(Kernels, Local, testing::ValuesIn([] {
                           std::vector<Kernel> kernels = kernels_of<TestExec>();
                           kernels.push_back(Kernel::automatic);
                           return kernels;
                         }()),
                         [](const auto& info) { return std::string(attention::name_of(info.param)); });

TEST_P(Local, Masks) {
  for (const std::string& mask : masks.all(130)) check(AttentionProblem::random({130, 40, 2, 4, 2}, mask));
}

TEST_P(Local, Shards) {
  for (const std::string& mask : masks.all(131)) {
    const AttentionProblem problem = AttentionProblem::random({131, 16, 1, 2, 1}, mask);
    const AttentionResult expected = problem.reference();
    for (const Layout& layout : layouts) {
      check(problem, expected, {.layout = layout, .shards = 3});
      check(problem, expected, {.layout = layout, .shards = 4, .order = 3});
    }
  }
}

TEST_P(Local, MergesShardsInAnyOrder) {
  const AttentionProblem problem = AttentionProblem::random({130, 16}, "causal");
  const AttentionResult expected = problem.reference();
  for (unsigned order = 1; order < 12; ++order)
    check(problem, expected, {.layout = layouts[1], .shards = 6, .order = order});
}

TEST_P(Local, HeadDimensions) {
  for (const int head_dim : {16, 24, 40, 64, 80, 128, 136, 256}) {
    check(AttentionProblem::random({130, head_dim, 1, 2, 1}, "causal"));
    check(AttentionProblem::random({70, head_dim}, "full"), {.layout = layouts[2], .shards = 2});
  }
}

TEST_P(Local, Lengths) {
  for (const std::int64_t tokens : {1, 2, 7, 63, 64, 65, 96, 97, 130, 193, 257}) {
    for (const char* mask : {"full", "causal"}) check(AttentionProblem::random({tokens, 24, 1, 2, 2}, mask));
  }
}

TEST_P(Local, MoreShardsThanTokens) {
  for (const Layout& layout : layouts) {
    check(AttentionProblem::random({3, 16, 2, 2, 1}, "causal"), {.layout = layout, .shards = 5});
  }
}

TEST_P(Local, GroupedHeads) {
  for (const auto& [heads, kv_heads] : {std::pair{8, 8}, {8, 4}, {8, 1}, {6, 2}, {5, 1}}) {
    check(AttentionProblem::random({67, 32, 2, heads, kv_heads}, "causal"));
  }
}

TEST_P(Local, StorageTypes) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const std::string& mask : masks.all(130)) {
      check(AttentionProblem::random({130, 40, 1, 2, 1}, mask, type), {.layout = layouts[1], .shards = 2},
            type);
    }
  }
}

TEST_P(Local, Strides) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionProblem problem = AttentionProblem::random({97, 40, 2, 4, 2}, "window:40,9", type);
    const AttentionResult expected = problem.reference();
    for (const Storage storage : {Storage::tokens_first, Storage::inside}) {
      check(problem, expected, {.storage = storage}, type);
      check(problem, expected, {.layout = layouts[3], .shards = 3, .storage = storage}, type);
    }
  }
}

TEST_P(Local, HeadsWithBlockListsOfTheirOwn) {
  for (const char* mask : {"full", "causal", "window:40,9"}) {
    AttentionProblem problem = AttentionProblem::random({130, 16, 2, 6, 2}, mask);
    problem.head_list_block = 12;
    for (const std::int64_t heads_of_list : {1, 3}) {
      problem.heads_of_list = heads_of_list;
      const AttentionResult expected = problem.reference();
      check(problem, expected);
      check(problem, expected, {.layout = layouts[1], .shards = 3, .order = 2, .fresh = true});
      check(problem, expected, {.layout = layouts[2], .shards = 2, .storage = Storage::tokens_first});
    }
  }
}

TEST_P(Local, RowsWithoutKeysGiveExactlyZeroAndMinusInfinity) {
  const AttentionProblem problem = AttentionProblem::random({48, 16, 1, 2, 1}, masks.blocks_of(48));
  for (const int shards : {1, 3}) {
    const AttentionResult result =
        run_local<float>(exec, problem, {.kernel = GetParam(), .layout = layouts[2], .shards = shards});
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < 48; ++i) {
        const bool without = i / 12 == 1;
        EXPECT_EQ(*result.lse.row(0, h, i) == -infinity, without) << i;
        for (int c = 0; c < 16; ++c) {
          EXPECT_EQ(result.out.row(0, h, i)[c] == 0, without) << i;
          EXPECT_EQ(result.dq.row(0, h, i)[c] == 0, without) << i;
        }
      }
    }
  }
}

TEST_P(Local, LargeScores) {
  // Scores of ±10⁴ that fp32 holds exactly: the difference of two scores is 0 or 2·10⁴, never rounded.
  AttentionProblem problem = AttentionProblem::random({130, 64, 1, 2, 1}, "causal");
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 130; ++i) {
      for (int c = 0; c < 64; ++c) problem.q.row(0, h, i)[c] = i % 3 == 0 ? -16 : 16;
    }
  }
  for (std::int64_t i = 0; i < 130; ++i) {
    for (int c = 0; c < 64; ++c) problem.k.row(0, 0, i)[c] = i % 5 < 2 ? -10 : 10;
  }
  problem.scale = 1.0;
  const AttentionResult expected = problem.reference();
  const AttentionResult result = run_local<float>(exec, problem, {.kernel = GetParam()});
  EXPECT_LT(relative_error(result.out, expected.out), fp32_tolerance);
  EXPECT_LT(relative_error(result.lse, expected.lse), fp32_tolerance);
  // The LSE is an fp32 number of size 10⁴, 10⁻³ from its neighbours, and the backward and merging go through
  // it.
  check(problem, expected, {}, DType::f32, 2e-3);
  check(problem, expected, {.layout = layouts[2], .shards = 3, .order = 2}, DType::f32, 2e-3);
}

TEST_P(Local, LargeRandomScores) {
  // Scores of size 10⁴ are known to 10⁻³ or so in fp32, and so are the probabilities.
  const AttentionProblem problem = AttentionProblem::random({130, 64, 1, 2, 1}, "causal", DType::f32, 100.0);
  const AttentionResult expected = problem.reference();
  check(problem, expected, {}, DType::f32, 1e4 * fp32_tolerance);
  check(problem, expected, {.layout = layouts[1], .shards = 3}, DType::f32, 1e4 * fp32_tolerance);
}

TEST_P(Local, QueriesWithoutLseSendNoGradients) {
  // LSE = −inf says that a query has no key anywhere, whatever this block's mask says.
  AttentionProblem problem = AttentionProblem::random({70, 24}, "full");
  const PositionMap positions = Layout().shard(70, 1, 0);
  Array lse = problem.reference().lse, d = random_array(1, 1, 70, 1, DType::f32, 5);
  AttentionProblem silent =
      problem;  // what the others send: d_out and d of the row are zero, so is its P∘(dP − d)
  for (const int i : {0, 33, 69}) {
    *lse.row(0, 0, i) = -infinity;
    std::fill_n(silent.d_out.row(0, 0, i), 24, 0.0);
  }
  const attention::MaskOn<TestExec> mask(exec, problem.mask);
  const auto gradients = [&](const AttentionProblem& from, const Array& lse, const Array& d) {
    const auto q = rows_on<float>(exec, from.q, positions), k = rows_on<float>(exec, from.k, positions),
               v = rows_on<float>(exec, from.v, positions),
               d_out = rows_on<float>(exec, from.d_out, positions);
    const auto lse_rows = rows_on<float>(exec, lse, positions), d_rows = rows_on<float>(exec, d, positions);
    const auto dq = filled_rows(exec, from.q, positions, 0.0f),
               dk = filled_rows(exec, from.k, positions, 0.0f),
               dv = filled_rows(exec, from.v, positions, 0.0f);
    attention::backward<TestExec, float>(
        exec, {q.read(), k.read(), v.read(), positions, positions, mask.rule(), 0.2f},
        {.d_out = d_out.read(),
         .lse = lse_rows.read_rows(),
         .d = d_rows.read_rows(),
         .dq = dq.view(),
         .dk = dk.view(),
         .dv = dv.view()},
        GetParam());
    exec.fence("annulus::test: gradients are there");
    AttentionResult result = from.empty_result();
    dq.store(result.dq, positions);
    dk.store(result.dk, positions);
    dv.store(result.dv, positions);
    return result;
  };
  const AttentionResult with = gradients(problem, lse, d);
  Array quiet_lse = lse, quiet_d = d;
  for (const int i : {0, 33, 69}) {
    *quiet_lse.row(0, 0, i) = 0;
    *quiet_d.row(0, 0, i) = 0;
  }
  const AttentionResult without = gradients(silent, quiet_lse, quiet_d);
  EXPECT_LT(relative_error(with.dk, without.dk), fp32_tolerance);
  EXPECT_LT(relative_error(with.dv, without.dv), fp32_tolerance);
  for (const int i : {0, 33, 69}) {
    for (int c = 0; c < 24; ++c) EXPECT_EQ(with.dq.row(0, 0, i)[c], 0);
  }
}

TEST_P(Local, MergesIntoWhatIsThere) {
  // The same block twice: the average stays, the sum of the exponentials doubles.
  const AttentionProblem problem = AttentionProblem::random({66, 16}, "full");
  const AttentionResult once = run_local<float>(exec, problem, {.kernel = GetParam()});
  const PositionMap positions = Layout().shard(66, 1, 0);
  const attention::MaskOn<TestExec> mask(exec, problem.mask);
  const auto q = rows_on<float>(exec, problem.q, positions), k = rows_on<float>(exec, problem.k, positions),
             v = rows_on<float>(exec, problem.v, positions);
  const auto out = filled_rows(exec, problem.q, positions, 0.0f),
             lse = filled_rows(exec, once.lse, positions, 0.0f);
  attention::start_forward(exec, out.view(), lse.rows());
  const attention::Operands<float, TestExec> in{
      q.read(), k.read(), v.read(), positions, positions, mask.rule(), static_cast<float>(problem.scale)};
  for (int i = 0; i < 2; ++i) attention::forward(exec, in, out.view(), lse.rows(), GetParam());
  exec.fence("annulus::test: merged twice");
  AttentionResult twice = problem.empty_result();
  out.store(twice.out, positions);
  lse.store(twice.lse, positions);
  EXPECT_LT(relative_error(twice.out, once.out), fp32_tolerance);
  Array expected = once.lse;
  for (double& value : expected.values) value += std::log(2.0);
  EXPECT_LT(relative_error(twice.lse, expected), fp32_tolerance);
}

TEST_P(Local, FinishesInTheTypeOfTheInputs) {
  for (const std::string& mask : {std::string("causal"), masks.blocks_of(97)}) {
    for (const Storage storage : {Storage::dense, Storage::tokens_first, Storage::inside}) {
      for (const auto& [shards, fresh] : {std::pair{1, true}, {3, false}, {3, true}}) {
        const bool inside = storage == Storage::inside;
        const LocalRun run{.kernel = GetParam(),
                           .layout = layouts[inside ? 1 : 0],
                           .shards = shards,
                           .storage = storage,
                           .fresh = fresh};
        const auto check = [&]<class T>(T) {
          const AttentionShape shape{97, inside ? 40 : 64, 1, 2, 1};
          const AttentionProblem problem = AttentionProblem::random(shape, mask, dtype_of<T>);
          SCOPED_TRACE(describe(problem, dtype_of<T>, run));
          expect_finished<T>(exec, problem, run);
        };
        check(float()), check(bfloat16()), check(float16());
      }
    }
  }
}

TEST_P(Local, FinishesRowsThatMeetNoKeys) {
  // The last block has no keys: what came before it stays, or 0 where nothing did.
  for (const bool fresh : {false, true}) {
    const Array4<bfloat16, TestExec> q("q", 1, 2, 5, 16), none("none", 1, 2, 0, 16),
        finished("finished", 1, 2, 5, 16);
    const Array4<float, TestExec> out("out", 1, 2, 5, 16);
    const Array3<float, TestExec> lse("lse", 1, 2, 5);
    Kokkos::deep_copy(out, 3.0f);
    Kokkos::deep_copy(lse, 1.0f);
    Kokkos::deep_copy(finished, bfloat16(7.0f));
    attention::KernelOptions options = GetParam();
    options.fresh_out = fresh;
    const MaskRule mask = Mask::parse("full", 5).rule();
    attention::forward<TestExec, bfloat16>(exec, {q, none, none, Layout().shard(5, 1, 0), {}, mask, 0.2f},
                                           {out, lse, finished}, options);
    exec.fence("annulus::test: finished");
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), finished);
    for (std::size_t i = 0; i < host.size(); ++i)
      EXPECT_EQ(static_cast<float>(host.data()[i]), fresh ? 0.0f : 3.0f);
  }
}

TEST_P(Local, NanIsPassedOn) {
  AttentionProblem problem = AttentionProblem::random({70, 16}, "causal");
  problem.k.row(0, 0, 65)[3] = std::numeric_limits<double>::quiet_NaN();
  const AttentionResult result = run_local<float>(exec, problem, {.kernel = GetParam()});
  EXPECT_FALSE(std::isnan(*result.lse.row(0, 0, 64)));
  for (int i = 65; i < 70; ++i) EXPECT_TRUE(std::isnan(*result.lse.row(0, 0, i))) << i;
  EXPECT_TRUE(std::isnan(result.out.row(0, 0, 65)[0]));
}

TEST(LocalCross, SlowEverything) {
  const TestExec exec;
  const MaskTexts masks;
  // The gradient of a row with one key is dO·V − rowsum(dO∘O) = 0. A device adds the two up in different
  // orders, and the rounding of sums of 256 numbers is what is left.
  const double tolerance = on_host ? fp32_tolerance : 2 * fp32_tolerance;
  const auto check = [&](const AttentionProblem& problem, DType type) {
    const AttentionResult expected = problem.reference();
    for (const Kernel kernel : kernels_of<TestExec>()) {
      for (const Layout& layout : layouts) {
        for (const int shards : {1, 3}) {
          if (shards == 1 && layout != layouts[0]) continue;
          const auto storage = static_cast<Storage>((shards + problem.shape.head_dim / 8) % 3);
          const LocalRun run{
              .kernel = kernel, .layout = layout, .shards = shards, .order = 9, .storage = storage};
          EXPECT_EQ(differences(run_local(exec, problem, type, run), expected, tolerance), "")
              << attention::name_of(kernel) << ": " << describe(problem, type, run);
        }
      }
    }
  };
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const int head_dim : {16, 24, 40, 64, 80, 128, 136, 256}) {
      for (const std::int64_t tokens : {7, 65, 200}) {
        for (const std::string& mask : masks.all(tokens)) {
          check(AttentionProblem::random({tokens, head_dim, 1, 6, 2}, mask, type), type);
        }
      }
    }
  }
}

#if defined(KOKKOS_ENABLE_SERIAL) && !defined(ANNULUS_TEST_ON_DEVICE)
TEST(LocalOnSerial, EqualsTheReference) {
  const MaskTexts masks;
  const Kokkos::Serial exec;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::string& mask : masks.all(130)) {
      const AttentionProblem problem = AttentionProblem::random({130, 24, 2, 4, 2}, mask, type);
      for (const Kernel kernel : {Kernel::portable, Kernel::automatic}) {
        const LocalRun run{.kernel = kernel, .layout = layouts[1], .shards = 2};
        EXPECT_EQ(differences(run_local(exec, problem, type, run), problem.reference(), fp32_tolerance), "")
            << describe(problem, type, run);
      }
    }
  }
}
#endif

}  // namespace
}  // namespace annulus::test
