// Sparse attention against double precision over exactly the selected pairs.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "attention/sparsity/sparse_case.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

/// Tolerance for tensor cores, which round probabilities to bf16: half a unit in its last place.
constexpr double bf16_tolerance = 5e-3;

TEST(SparseAttention, ComputesExactlyTheSelectedPairsUnderEverySchedule) {
  const auto problem = AttentionProblem::random(
      {.tokens = 261, .head_dim = 16, .batch = 1, .heads = 8, .kv_heads = 4}, "causal", DType::f32, 1.5);
  expect_exact_under_every_schedule(
      problem, {"vertical-slash:verticals=11,slashes=2", "xattention:block=64,stride=16,threshold=0.5",
                "moba:block=64,top=2", "infllm-v2:block=64,top=1,sinks=3,window=40,stride=8"});
}

TEST(SparseAttention, TakesAnyLengthHeadsTypesAndKernel) {
  int number = 0;
  for (const auto& [tokens, heads, kv_heads, batch, width, options] :
       {std::tuple{1, 2, 1, 1, 16, "vertical-slash:window=1"},
        {63, 2, 2, 2, 24, "vertical-slash:recall=0.5,window=10,local=0"},
        {17, 2, 2, 2, 24, "vertical-slash:verticals=17,slashes=1,sinks=20,local=17,window=9"},
        {129, 4, 1, 1, 64, "vertical-slash:recall=0.4,select=heads,local=0"},
        {320, 4, 2, 2, 32, "vertical-slash:verticals=40,slashes=1,sinks=5,select=heads"},
        {449, 2, 1, 1, 16, "vertical-slash:verticals=30,slashes=0,local=0"},
        {515, 2, 1, 2, 16, "vertical-slash:verticals=0,slashes=3,local=70"},
        {3, 2, 1, 1, 16, "xattention"},
        {449, 4, 2, 2, 24, "xattention:block=128,stride=32,threshold=0.4"},
        {600, 4, 1, 1, 64, "xattention:block=192,stride=16,threshold=0.5,select=kv-heads"},
        {70, 2, 1, 1, 16, "xattention:block=4096,stride=4096,threshold=0.1"},
        {1, 2, 1, 1, 16, "moba"},
        {70, 2, 1, 1, 16, "moba:block=2147483648,top=2147483648"},
        {450, 4, 2, 2, 24, "moba:block=64,top=3"},
        {600, 4, 1, 1, 64, "moba:block=128,top=2"},
        {3, 2, 1, 1, 16, "infllm-v2"},
        {70, 2, 1, 1, 16,
         "infllm-v2:block=2147483648,top=0,sinks=2147483648,window=2147483648,stride=2147483648"},
        {600, 4, 2, 2, 24, "infllm-v2:block=128,top=1,sinks=0,window=1,stride=32"}}) {
    for (const auto& [ranks, layout] : {std::pair{1, "contiguous"}, {3, "block-striped:64"}}) {
      for (const attention::Kernel kernel : {attention::Kernel::automatic, attention::Kernel::portable}) {
        // Either kernel has either type in turns.
        const bool bf16 = (number + number / 2 + (kernel == attention::Kernel::portable)) % 2 == 1;
        const auto problem = AttentionProblem::random(
            {.tokens = tokens, .head_dim = width, .batch = batch, .heads = heads, .kv_heads = kv_heads},
            "causal", bf16 ? DType::bf16 : DType::f32, 1.5, 7);
        const SparseRun run{.options = options,
                            .topology = Topology::uniform(ranks, ranks),
                            .layout = Layout::parse(layout),
                            .kernel = kernel,
                            .one_plan_a_sequence = batch > 1 && ranks > 1};
        const std::string what = fmt::format("{} tokens, {} ranks, {}", tokens, ranks, options);
        const bool tensor_cores =
            attention::on_tensor_cores(attention::kernel_for<TestExec, bfloat16>(width, kernel));
        bf16 ? expect_exact<bfloat16>(problem, run, what, tensor_cores ? bf16_tolerance : fp32_tolerance)
             : expect_exact<float>(problem, run, what);
      }
      ++number;
    }
  }
}

/// Columns that are taken from keys as they pass by, that are gathered, and that are kept.
TEST(SparseAttention, ColumnsOfPassingKeysHaveTheBitsOfGatheredOnes) {
  int number = 0;
  for (const auto& [ranks, schedule, keys_of_forward, keys_of_backward] :
       {std::tuple{2, "ring", false, false},
        {3, "burst", false, true},
        {3, "all-gather", false, false},
        {4, "topology-burst", false, true},
        {4, "hierarchical", false, false},
        {4, "double-ring:2", false, false},
        {3, "helper-worker", true, true},
        {2, "ulysses", true, true},
        {4, "hybrid:2x2", true, true}}) {
    const bool bf16 = number % 2 == 1;
    const auto problem =
        AttentionProblem::random({.tokens = 389, .head_dim = 16, .batch = 2, .heads = 4, .kv_heads = 2},
                                 "causal", bf16 ? DType::bf16 : DType::f32, 1.5, 5);
    SparseRun run{.options = number % 3 == 0 ? "vertical-slash:verticals=23,slashes=1,select=heads"
                                             : "vertical-slash:recall=0.4,budget=joint,local=0",
                  .topology = balanced(ranks, ranks == 4 ? 2 : 1),
                  .layout = Layout::parse(std::string(schedule) == "helper-worker" ? "contiguous"
                                          : number % 2 == 0                        ? "block-striped:64"
                                                                                   : "zigzag"),
                  .schedule = schedule};
    if (number % 4 == 2) {
      run.options = "vertical-slash:verticals=23,slashes=1";
      run.masks = {"documents:0,70,71,200", "documents:0,333"};
    }
    ++number;
    const auto result = [&](bool claims_nothing, bool keeps_columns = false) {
      SparseRun one = run;
      one.claims_nothing = claims_nothing;
      one.keeps_columns = keeps_columns;
      return bf16 ? run_sparse<bfloat16>(problem, one) : run_sparse<float>(problem, one);
    };
    const SparseResult passing = result(false), gathered = result(true), kept = result(false, true);
    const std::string what = fmt::format("{} ranks, {}, {}", ranks, schedule, run.layout.to_string());
    EXPECT_TRUE(same_bits(passing.result, gathered.result)) << what;
    EXPECT_TRUE(same_bits(kept.result, gathered.result)) << what;
    // K and V in their type, dK and dV in fp32; the sums of both passes.
    const HostSelection& selection = passing.selection;
    ASSERT_GT(selection.most, 0) << what;
    const std::int64_t elements = 2 * selection.batch * selection.lists * selection.most * 16,
                       element = bf16 ? 2 : 4;
    EXPECT_EQ(gathered.summed_bytes, elements * (2 * element + 4)) << what;
    EXPECT_EQ(passing.summed_bytes,
              elements * ((keys_of_forward ? element : 0) + (keys_of_backward ? element : 0) + 4))
        << what;
    EXPECT_EQ(kept.summed_bytes, elements * ((keys_of_forward ? element : 0) + 4)) << what;
    for (const SparseResult& of : {passing, gathered, kept})
      EXPECT_EQ(of.column_traffic, of.summed_bytes * 2 * (ranks - 1) / ranks) << what;
  }
}

TEST(SparseAttention, RefusesSinksAndCapsByName) {
  auto problem = AttentionProblem::random({.tokens = 70, .head_dim = 16}, "causal");
  const SparseRun run{.options = "vertical-slash:verticals=5,slashes=1", .topology = Topology::uniform(1, 1)};
  problem.soft_cap = 50;
  EXPECT_THAT(error_text([&] { run_sparse<float>(problem, run); }),
              mentions("sparse attention", "a soft cap"));
  problem.soft_cap = 0;
  problem.add_sinks(DType::f32);
  EXPECT_THAT(error_text([&] { run_sparse<float>(problem, run); }), mentions("sparse attention", "sinks"));
}

/// Blocks and columns on tensor cores: an error where columns would take another kernel.
class SparseAttentionOn : public testing::TestWithParam<attention::Kernel> {
 protected:
  void SetUp() override {
    const attention::Kernel fastest = attention::kernel_for<TestExec, bfloat16>(64);
    if (!attention::on_tensor_cores(fastest)) GTEST_SKIP() << "there are no tensor cores";
    if (GetParam() == attention::Kernel::hopper && fastest != GetParam())
      GTEST_SKIP() << "this is no GPU of Hopper's";
  }
};
INSTANTIATE_TEST_SUITE_P(TensorCores, SparseAttentionOn,
                         testing::Values(attention::Kernel::mma, attention::Kernel::hopper),
                         [](const auto& info) { return std::string(attention::name_of(info.param)); });

TEST_P(SparseAttentionOn, BlocksAndColumns) {
  int number = 0;
  for (const int width : {64, 80, 96, 112, 128, 256}) {
    if (width > 128 && GetParam() == attention::Kernel::mma) continue;  // which does not take it
    for (const auto& [ranks, layout] :
         {std::pair{1, "contiguous"}, {2, "block-striped:64"}, {2, "zigzag"}, {3, "striped"}}) {
      const char* const select = (number / 2 + number / 4) % 2 == 0 ? "kv-heads" : "heads";
      ++number;
      const auto problem = AttentionProblem::random({.tokens = 831,
                                                     .head_dim = width,
                                                     .batch = width == 64 ? 2 : 1,
                                                     .heads = width == 128 ? 8 : 4,
                                                     .kv_heads = 2},
                                                    "causal", DType::bf16, 1.5, 11);
      const std::string options =
          fmt::format("vertical-slash:verticals=150,slashes=3,sinks=3,select={}", select);
      expect_exact<bfloat16>(problem,
                             {.options = options,
                              .topology = Topology::uniform(ranks, ranks),
                              .layout = Layout::parse(layout),
                              .kernel = GetParam()},
                             fmt::format("head_dim {}, {} ranks, {}, {}", width, ranks, layout, select),
                             bf16_tolerance);
    }
  }
}

TEST_P(SparseAttentionOn, EveryPatternAndDocuments) {
  int number = 0;
  for (const int width : {64, 128}) {
    for (const char* const options :
         {"vertical-slash:verticals=60,slashes=2", "xattention:block=64,stride=16,threshold=0.5",
          "xattention:block=128,stride=16,threshold=0.4,select=kv-heads", "moba:block=64,top=2",
          "moba:block=192,top=1", "infllm-v2:block=64,top=1,sinks=3,window=40,stride=8"}) {
      for (const bool documents : {false, true}) {
        const int ranks = 1 + number++ % 3;
        const auto problem = AttentionProblem::random(
            {.tokens = 603, .head_dim = width, .batch = 1, .heads = 4, .kv_heads = 2}, "causal", DType::bf16,
            1.5, 13);
        SparseRun run{.options = options,
                      .topology = Topology::uniform(ranks, ranks),
                      .layout = Layout::parse(ranks == 1 ? "contiguous" : "block-striped:64"),
                      .kernel = GetParam()};
        if (documents) run.masks = {"documents:0,1,70,71,330"};
        expect_exact<bfloat16>(
            problem, run,
            fmt::format("head_dim {}, {} ranks, {}, {}", width, ranks, options, documents ? "documents" : ""),
            bf16_tolerance);
      }
    }
  }
}

// More documents than a launch has blocks, and some that are longer than a tile.
TEST_P(SparseAttentionOn, AThousandDocuments) {
  constexpr std::int64_t count = 1000;
  const std::vector<std::int64_t> starts = short_documents(count);
  const AttentionShape shape{.tokens = starts.back(), .head_dim = 128, .batch = 1, .heads = 4, .kv_heads = 2};
  const auto problem = AttentionProblem::random(
      shape, fmt::format("documents:{}", fmt::join(starts.begin(), starts.end() - 1, ",")), DType::bf16, 1.5,
      17);
  for (const char* const options :
       {"vertical-slash:recall=0.5", "xattention:block=64,stride=16,threshold=0.5", "moba:block=64,top=2",
        "infllm-v2:block=64,top=1,sinks=0,window=1"})
    expect_exact_in_documents<bfloat16>(problem, {.options = options, .kernel = GetParam()},
                                        {0, 1, 29, 30, 31, 280, 530, 998, 999}, options, bf16_tolerance);
}

}  // namespace
}  // namespace annulus::test
