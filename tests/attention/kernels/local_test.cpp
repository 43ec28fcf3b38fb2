// Every kernel against the reference.
#include <gtest/gtest.h>

#include <annulus/base/dtype.hpp>

#include "attention/kernels/local_kernels.hpp"

namespace annulus::test {
namespace {

using attention::Kernel;

class Local : public LocalKernels {};
INSTANTIATE_TEST_SUITE_P(Fp32, Local, testing::ValuesIn(fp32_kernels({DType::f32, DType::bf16, DType::f16})),
                         name_of_local_kernel);
INSTANTIATE_TEST_SUITE_P(TensorCores, Local, testing::ValuesIn(tensor_core_kernels()), name_of_local_kernel);

TEST_P(Local, MasksLayoutsAndStorages) {
  const AttentionShape shape =
      tensor_cores() ? AttentionShape{300, 0, 2, 4, 2} : AttentionShape{131, 40, 2, 2, 1};
  for (const std::string& mask : masks.all(shape.tokens)) {
    const AttentionProblem whole = problem(shape, mask);
    const AttentionResult expected = whole.reference();
    check(whole, expected);
    for (const Layout& layout : local_layouts)
      check(whole, expected, {.layout = layout, .shards = 3, .order = 5, .storage = Storage::inside});
    check(whole, expected, {.storage = Storage::tokens_first});
    check(whole, expected, {.layout = local_layouts[1], .shards = 2, .order = 2, .fresh = true});
    check(whole, expected,
          {.layout = local_layouts[2], .shards = 3, .storage = Storage::tokens_first, .fresh = true});
    check(whole, expected, {.layout = local_layouts[3], .shards = 4, .order = 3});
  }
}

TEST_P(Local, Lengths) {
  for (const std::int64_t tokens : {1, 2, 7, 63, 64, 65, 96, 97, 127, 128, 129, 130, 193, 257}) {
    for (const char* mask : {"full", "causal"}) check(problem({tokens, 24, 1, 2, 2}, mask));
  }
}

TEST_P(Local, GroupedHeads) {
  for (const auto& [heads, kv_heads] : {std::pair{8, 8}, {8, 4}, {8, 1}, {6, 2}, {5, 1}})
    check(problem({67, 32, 2, heads, kv_heads}, "causal"));
}

TEST_P(Local, HeadsWithBlockListsOfTheirOwn) {
  using Lists = std::vector<std::pair<int, int>>;  // tokens of a block, heads of a list
  const auto& [shape, lists] =
      tensor_cores() ? std::pair(AttentionShape{300, 0, 2, 8, 2}, Lists{{64, 1}, {64, 4}, {37, 2}})
                     : std::pair(AttentionShape{130, 16, 2, 6, 2}, Lists{{12, 1}, {12, 3}});
  for (const char* mask : {"full", "causal", "window:40,9", "window:90,0"}) {
    for (const auto& [block, heads_of_list] : lists) {
      AttentionProblem whole = problem(shape, mask);
      whole.head_list_block = block;
      whole.heads_of_list = heads_of_list;
      const AttentionResult expected = whole.reference();
      check(whole, expected);
      check(whole, expected, {.layout = local_layouts[1], .shards = 3, .order = 2, .fresh = true});
      check(whole, expected, {.layout = local_layouts[2], .shards = 2, .storage = Storage::tokens_first});
      check(whole, expected, {.layout = local_layouts[1], .shards = 2, .fresh = true, .lists_keys = true});
      check(whole, expected, {.layout = local_layouts[2], .shards = 3, .lists_keys = true});
    }
  }
}

TEST_P(Local, RowsWithoutKeysGiveZeroAndTheirSink) {
  AttentionProblem whole = problem({48, 16, 1, 2, 1}, masks.blocks_of(48));
  for (const bool sinks : {false, true}) {
    if (sinks) whole.add_sinks(type());
    for (const int shards : {1, 3}) {
      const AttentionResult result = run(whole, {.layout = local_layouts[2], .shards = shards});
      for (int h = 0; h < 2; ++h) {
        const double empty = sinks ? *whole.sinks.row(0, h, 0) : -infinity;
        for (int i = 0; i < 48; ++i) {
          const bool without = i / 12 == 1;
          EXPECT_EQ(*result.lse.row(0, h, i) == empty, without) << i;
          for (int c = 0; c < whole.shape.head_dim; ++c)
            EXPECT_EQ(result.out.row(0, h, i)[c] == 0 && result.dq.row(0, h, i)[c] == 0, without) << i;
        }
      }
    }
  }
}

TEST_P(Local, NanIsPassedOn) {
  AttentionProblem whole = problem({70, 16}, "causal");
  whole.k.row(0, 0, 65)[3] = std::numeric_limits<double>::quiet_NaN();
  const AttentionResult result = run(whole);
  EXPECT_FALSE(std::isnan(*result.lse.row(0, 0, 64)));
  for (int i = 65; i < 70; ++i) EXPECT_TRUE(std::isnan(*result.lse.row(0, 0, i))) << i;
  EXPECT_TRUE(std::isnan(result.out.row(0, 0, 65)[0]));
}

/// Ways to cut a problem that take turns.
const std::vector<LocalRun> ways = {
    {},
    {.layout = local_layouts[1], .shards = 3, .order = 5, .fresh = true},
    {.layout = local_layouts[2], .shards = 2, .storage = Storage::tokens_first},
    {.layout = local_layouts[4], .shards = 4, .order = 3, .fresh = true}};

TEST_P(Local, CappedScores) {
  const AttentionShape shape =
      tensor_cores() ? AttentionShape{300, 0, 2, 4, 2} : AttentionShape{131, 40, 1, 2, 1};
  std::size_t number = 0;
  for (const std::string& mask : masks.all(shape.tokens)) {
    AttentionProblem whole = problem(shape, mask, 2.0);  // scores of about 4
    whole.soft_cap = number % 2 == 0 ? 3.0 : 50.0;
    check(whole, whole.reference(), ways[number++ % ways.size()], capped_tolerance(whole));
  }
}

TEST_P(Local, CapsLargeScores) {
  // Scores of size 10⁴ are capped to ±30 but for a few, which fp32 knows to 10⁻³ or so.
  AttentionProblem whole = problem({130, 64, 1, 2, 1}, "causal", 100.0);
  whole.soft_cap = 30.0;
  check(whole, whole.reference(), {.layout = local_layouts[1], .shards = 3},
        std::max(1e-2, capped_tolerance(whole)));
}

TEST_P(Local, SinksJoinEveryRow) {
  const AttentionShape shape =
      tensor_cores() ? AttentionShape{300, 0, 2, 4, 2} : AttentionShape{131, 40, 1, 4, 2};
  std::size_t number = 0;
  for (const std::string& mask : masks.all(shape.tokens)) {
    AttentionProblem whole = problem(shape, mask);
    whole.add_sinks(type(), number % 2 == 0 ? 2.0 : 60.0);  // as large as scores, and larger than any
    check(whole, whole.reference(), ways[number++ % ways.size()]);
  }
}

TEST_P(Local, SinksAndACapTogether) {
  AttentionProblem whole = problem({97, 64, 2, 4, 2}, "documents:0,20,83,84+window:30,0", 2.0);
  whole.soft_cap = 5.0;
  whole.add_sinks(type());
  check(whole, whole.reference(), {.layout = local_layouts[2], .shards = 3}, capped_tolerance(whole));
}

TEST_P(Local, SinksGiveTheSameBitsAgain) {
  AttentionProblem whole = problem({150, 64, 1, 4, 2}, "causal");
  whole.soft_cap = 20.0;
  whole.add_sinks(type());
  EXPECT_TRUE(same_bits(run(whole), run(whole)));
}

TEST_P(Local, PlainScoresHaveTheBitsOfNoSink) {
  // Sinks that are as good as none: every other operation is the one without.
  AttentionProblem whole = problem({97, 64, 2, 4, 2}, "causal");
  const AttentionResult expected = run(whole);
  whole.sinks = Array(1, 4, 1, 1, -infinity);
  AttentionResult result = run(whole);
  result.d_sinks = expected.d_sinks;
  EXPECT_TRUE(same_bits(result, expected));
}

// The last keys of some shards are masked for all rows.
TEST_P(Local, FinishesInTheTypeOfTheInputs) {
  for (const std::string& mask : {std::string("causal"), masks.blocks_of(97)}) {
    for (const Storage storage : {Storage::dense, Storage::tokens_first, Storage::inside}) {
      for (const auto& [shards, fresh] : {std::pair{1, false}, {1, true}, {3, false}, {3, true}}) {
        const bool inside = storage == Storage::inside;
        LocalRun how{
            .layout = local_layouts[inside ? 1 : 0], .shards = shards, .storage = storage, .fresh = fresh};
        AttentionProblem whole = problem({97, inside ? 40 : 64, 2, 4, 2}, mask);
        for (const bool sinks : {false, true}) {
          if (sinks && inside) continue;
          if (sinks) whole.add_sinks(type());
          how.finishes = false;
          const AttentionResult expected = run(whole, how);
          how.finishes = true;
          const AttentionResult result = run(whole, how);
          EXPECT_EQ(result.out.values, rounded(expected.out, type()).values) << describe(whole, how);
          EXPECT_EQ(result.lse.values, expected.lse.values) << describe(whole, how);
        }
      }
    }
  }
}

// --- Kernels that multiply in fp32, on fp32 ----------------------------------------------------------------

class LocalFp32 : public LocalKernels {};
INSTANTIATE_TEST_SUITE_P(Kernels, LocalFp32, testing::ValuesIn(fp32_kernels({DType::f32})),
                         name_of_local_kernel);

TEST_P(LocalFp32, MergesShardsInAnyOrder) {
  const AttentionProblem whole = problem({130, 16}, "causal");
  const AttentionResult expected = whole.reference();
  for (unsigned order = 1; order < 12; ++order)
    check(whole, expected, {.layout = local_layouts[1], .shards = 6, .order = order});
}

TEST_P(LocalFp32, HeadDimensions) {
  for (const int head_dim : {16, 24, 40, 64, 80, 128, 136, 256}) {
    check(problem({130, head_dim, 1, 2, 1}, "causal"));
    check(problem({70, head_dim}, "full"), {.layout = local_layouts[2], .shards = 2});
  }
}

/// As in multi-head latent attention: rows of V and O are narrower, or wider, than those of Q and K.
TEST_P(LocalFp32, ValuesOfAnotherWidth) {
  for (const auto& [head_dim, v_head_dim] : {std::pair{192, 128}, {24, 16}, {40, 72}, {16, 256}}) {
    check(problem({130, head_dim, 2, 4, 2, v_head_dim}, "causal"), {.layout = local_layouts[1], .shards = 2});
    check(problem({70, head_dim, 1, 1, 1, v_head_dim}, "documents:0,20,21+window:30,0"));
  }
}

TEST_P(LocalFp32, MoreShardsThanTokens) {
  for (const Layout& layout : local_layouts)
    check(problem({3, 16, 2, 2, 1}, "causal"), {.layout = layout, .shards = 5});
}

TEST_P(LocalFp32, LargeScores) {
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
  const AttentionResult result = run(problem);
  EXPECT_LT(relative_error(result.out, expected.out), fp32_tolerance);
  EXPECT_LT(relative_error(result.lse, expected.lse), fp32_tolerance);
  // The LSE is an fp32 number of size 10⁴, 10⁻³ from its neighbours, and the backward and merging go through
  // it.
  check(problem, expected, {}, 2e-3);
  check(problem, expected, {.layout = local_layouts[2], .shards = 3, .order = 2}, 2e-3);
}

TEST_P(LocalFp32, LargeRandomScores) {
  // Scores of size 10⁴ are known to 10⁻³ or so in fp32, and so are the probabilities.
  const AttentionProblem whole = problem({130, 64, 1, 2, 1}, "causal", 100.0);
  const AttentionResult expected = whole.reference();
  check(whole, expected, {}, 1e4 * fp32_tolerance);
  check(whole, expected, {.layout = local_layouts[1], .shards = 3}, 1e4 * fp32_tolerance);
}

TEST_P(LocalFp32, QueriesWithoutLseSendNoGradients) {
  // LSE = −inf says that a query has no key anywhere, whatever this block's mask says.
  AttentionProblem problem = AttentionProblem::random({70, 24}, "full");
  const PositionMap positions = Layout().shard(70, 1, 0);
  Array lse = problem.reference().lse, d = random_array(1, 1, 70, 1, DType::f32, 5);
  // What the others send: d_out and d of the row are zero, so is its P∘(dP − d).
  AttentionProblem silent = problem;
  for (const int i : {0, 33, 69}) {
    *lse.row(0, 0, i) = -infinity;
    std::fill_n(silent.d_out.row(0, 0, i), 24, 0.0);
  }
  const attention::MaskOn<TestExec> mask(exec, problem.mask);
  const auto gradients = [&](const AttentionProblem& from, const Array& lse, const Array& d) {
    AttentionArrays<float, TestExec> arrays(exec, from, positions, positions, 0.0f);
    arrays.lse.load(lse, positions);
    arrays.d.load(d, positions);
    attention::backward<TestExec, float>(exec, arrays.operands(mask.rule()), arrays.gradients(), kernel());
    return arrays.results(exec);
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

TEST_P(LocalFp32, MergesIntoWhatIsThere) {
  // A block merged twice: the average stays, the sum of the exponentials doubles.
  const AttentionProblem problem = AttentionProblem::random({66, 16}, "full");
  const AttentionResult once = run(problem);
  const PositionMap positions = Layout().shard(66, 1, 0);
  const attention::MaskOn<TestExec> mask(exec, problem.mask);
  const AttentionArrays<float, TestExec> arrays(exec, problem, positions, positions);
  attention::start_forward(exec, arrays.out.view(), arrays.lse.rows());
  for (int i = 0; i < 2; ++i)
    attention::forward(exec, arrays.operands(mask.rule()), arrays.out.view(), arrays.lse.rows(), kernel());
  const AttentionResult twice = arrays.results(exec);
  EXPECT_LT(relative_error(twice.out, once.out), fp32_tolerance);
  Array expected = once.lse;
  for (double& value : expected.values) value += std::log(2.0);
  EXPECT_LT(relative_error(twice.lse, expected), fp32_tolerance);
}

TEST_P(LocalFp32, FinishesRowsThatMeetNoKeys) {
  // The last block has no keys: what came before it stays, or 0 where nothing did.
  for (const bool fresh : {false, true}) {
    const Array4<bfloat16, TestExec> q("q", 1, 2, 5, 16), none("none", 1, 2, 0, 16),
        finished("finished", 1, 2, 5, 16);
    const Array4<float, TestExec> out("out", 1, 2, 5, 16);
    const Array3<float, TestExec> lse("lse", 1, 2, 5);
    Kokkos::deep_copy(out, 3.0f);
    Kokkos::deep_copy(lse, 1.0f);
    Kokkos::deep_copy(finished, bfloat16(7.0f));
    attention::KernelOptions options = kernel();
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

TEST(LocalCross, EverythingSlow) {
  const TestExec exec;
  const MaskTexts masks;
  // The gradient of a row with one key is dO·V − rowsum(dO∘O) = 0. A device adds the two up in different
  // orders, and the rounding of sums of 256 numbers is what is left.
  const double tolerance = on_host ? fp32_tolerance : 2 * fp32_tolerance;
  const auto check = [&](const AttentionProblem& problem, DType type) {
    const AttentionResult expected = problem.reference();
    for (const Kernel kernel : kernels_of<TestExec>()) {
      for (const Layout& layout : local_layouts) {
        for (const int shards : {1, 3}) {
          if (shards == 1 && layout != local_layouts[0]) continue;
          const auto storage = static_cast<Storage>((shards + problem.shape.head_dim / 8) % 3);
          const LocalRun run{
              .kernel = kernel, .layout = layout, .shards = shards, .order = 9, .storage = storage};
          EXPECT_EQ(differences(run_local(exec, problem, type, run), expected, tolerance), "")
              << fmt::format("{}: {} tokens, head_dim {}, {}, {}, {} shards {}", attention::name_of(kernel),
                             problem.shape.tokens, problem.shape.head_dim, problem.mask.to_string(),
                             name_of(type), shards, layout.to_string());
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

}  // namespace
}  // namespace annulus::test
