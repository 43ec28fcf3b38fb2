// Blocks of keys that each query has of its own (MaskRule::query_blocks), against double precision over the
// same pairs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention/kernels/local_run.hpp"
#include "support/error_text.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

/// Whether a query of list `list` has a block: about a third of them, the queries of every tenth row none,
/// and nobody the block 3.
bool has_block(std::int64_t list, std::int64_t query, std::int64_t block) {
  if (query % 10 == 7 || block == 3) return false;
  return (7 * list + 5 * query + 3 * block + query * block / 2) % 3 == 0;
}

/// Bits of has_block where TestExec reads them.
class QueryBits {
 public:
  QueryBits(const MaskRule& rule, std::int64_t block, std::int64_t lists, std::int64_t heads_of_list)
      : rule_(rule) {
    rule_.block_size = block;
    rule_.block_lists = lists;
    rule_.heads_of_list = heads_of_list;
    words_ = Array3<std::uint32_t, TestExec>("words", lists, rule.tokens, rule_.words_of_query());
    const auto host = Kokkos::create_mirror_view(words_);
    for (std::int64_t list = 0; list < lists; ++list)
      for (std::int64_t query = 0; query < rule.tokens; ++query)
        for (std::int64_t b = 0; b < rule_.block_rows(); ++b)
          if (has_block(list, query, b)) host(list, query, b / 32) |= 1u << (b % 32);
    Kokkos::deep_copy(words_, host);
    rule_.query_blocks = words_.data();
  }
  const MaskRule& rule() const { return rule_; }

 private:
  MaskRule rule_;
  Array3<std::uint32_t, TestExec> words_;
};

/// One problem under `mask` in one way, beside the same pairs one by one.
void check(AttentionProblem problem, std::int64_t block, std::int64_t heads_of_list, LocalRun run,
           DType type) {
  const std::int64_t lists = problem.shape.batch * problem.shape.heads / heads_of_list;
  const attention::MaskOn<TestExec> mask(TestExec(), problem.mask);
  const QueryBits bits(mask.rule(), block, lists, heads_of_list);
  const HostHeadLists pairs(problem.mask.rule(), 1, lists, heads_of_list,
                            [&](std::int64_t list, std::int64_t query, std::int64_t key) {
                              return has_block(list, query, key / block);
                            });
  run.rule = &bits.rule();
  const AttentionResult found = run_local(TestExec(), problem, type, run),
                        exact = problem.reference(pairs.rule());
  EXPECT_EQ(differences(found, exact, fp32_tolerance), "")
      << fmt::format("{} tokens, {}, blocks of {}, {} heads of a list, {} shards, {}", problem.shape.tokens,
                     problem.mask.outline(), block, heads_of_list, run.shards, name_of(run.kernel.kernel));
  EXPECT_TRUE(same_bits(found, run_local(TestExec(), problem, type, run)));
}

TEST(LocalQueryBlocks, AreThePairsOfTheReferenceUnderEveryMaskAndCut) {
  const std::vector<LocalRun> ways = {
      {},
      {.layout = Layout::parse("zigzag"), .shards = 3, .order = 5, .fresh = true},
      {.layout = Layout::parse("striped"), .shards = 2, .storage = Storage::tokens_first},
      {.layout = Layout::parse("block-striped:64"), .shards = 2, .fresh = true}};
  std::size_t number = 0;
  for (const attention::Kernel kernel : kernels_of<TestExec>())
    for (const auto& [tokens, block] : {std::pair{1, 64}, {90, 16}, {601, 64}, {1100, 150}})
      for (const char* mask : {"causal", "full", "window:140,9", "documents:0,33,80+causal"}) {
        if (tokens < 90 && std::string(mask).starts_with("doc")) continue;
        const DType type = number % 3 == 0 ? DType::bf16 : DType::f32;
        AttentionProblem problem = AttentionProblem::random({.tokens = tokens,
                                                             .head_dim = number % 2 == 0 ? 16 : 24,
                                                             .batch = 1,
                                                             .heads = tokens < 100 ? 4 : 2,
                                                             .kv_heads = tokens < 100 ? 2 : 1},
                                                            mask, type);
        if (number % 5 == 4) problem.soft_cap = 3;
        LocalRun run = ways[tokens < 90 ? 0 : number % ways.size()];
        run.kernel = kernel;
        check(problem, block, number % 2 == 0 ? 1 : 2, run, type);
        ++number;
      }
}

TEST(LocalQueryBlocks, DoNotGoWithListsOrDilation) {
  const auto problem = AttentionProblem::random({.tokens = 40}, "dilated:20,2");
  const attention::MaskOn<TestExec> mask(TestExec(), problem.mask);
  const QueryBits bits(mask.rule(), 16, 1, 1);
  LocalRun run;
  run.rule = &bits.rule();
  EXPECT_THAT(error_text([&] { run_local<float>(TestExec(), problem, run); }), mentions("query_blocks"));
}

}  // namespace
}  // namespace annulus::test
