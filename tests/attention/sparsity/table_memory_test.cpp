// Tables of kernels on GPUs: what the plan of memory counts is what the calls of a plan ask for.
#include <gtest/gtest.h>

#include <algorithm>

#include <annulus/attention/sparsity/options.hpp>

#include "attention/kernels/table_memory.hpp"
#include "attention/sparsity/table_memory.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/attention/without_data.hpp"

namespace annulus::test {
namespace {

using attention::backward_tables, attention::forward_tables;

constexpr std::int64_t sequence = 8192;

plan::Problem problem_of(int ranks, const char* layout, int heads, int kv_heads, int batch) {
  plan::Problem problem;
  problem.topology = Topology::uniform(ranks, ranks);
  problem.layout = Layout::parse(layout);
  problem.mask = Mask::parse("causal", sequence);
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.batch = batch;
  problem.dtype = DType::bf16;
  return problem;
}

std::int64_t planned(const char* pattern, const char* schedule, const plan::Problem& problem,
                     const attention::KernelOptions& kernel = {}) {
  const std::vector plans{plans_of(schedule, problem)};
  return sparsity::table_memory(sparsity::PatternOptions::parse(pattern), plans, 0, kernel);
}

std::int64_t of_passes(const attention::Operands<bfloat16, HostExec>& in) {
  return std::max(forward_tables(in, {}), backward_tables(in, {}));
}

TEST(SparseTables, AreThoseOfTheLargestCall) {
  const auto lists = [](auto in, std::int64_t block, bool of_queries, std::int64_t heads_of_list) {
    const auto all = static_cast<std::int64_t>(in.q.extent(0) * in.q.extent(1));
    in.mask = with_blocks(in.mask, block, of_queries, all / heads_of_list, heads_of_list);
    return in;
  };
  {  // each rank has half of the rows, and meets half of the keys at a time
    const plan::Problem problem = problem_of(2, "contiguous", 4, 2, 3);
    const auto call = without_data(3, 4, 2, problem.owned(0), problem.owned(1), sequence);
    EXPECT_EQ(planned("infllm-v2:block=64,top=4,window=128", "ring", problem),
              of_passes(lists(call, 64, true, 2)));
    EXPECT_EQ(planned("moba:block=128,top=4", "ring", problem), of_passes(lists(call, 128, true, 1)));
    EXPECT_EQ(planned("xattention:block=128", "ring", problem), of_passes(lists(call, 64, false, 1)));
    EXPECT_EQ(planned("xattention:block=128,select=kv-heads", "ring", problem),
              of_passes(lists(call, 64, false, 2)));
    EXPECT_EQ(planned("moba:block=512,top=4", "ring", problem), 0);  // gathered by the kernel mma
    EXPECT_EQ(planned("moba:block=128,top=4", "ring", problem, attention::Kernel::portable), 0);
  }
  {  // striped: 32 rows lie in several blocks
    const plan::Problem problem = problem_of(2, "striped", 4, 4, 1);
    const auto call = without_data(1, 4, 4, problem.owned(0), problem.owned(1), sequence);
    EXPECT_EQ(planned("infllm-v2:block=64,top=4,window=128", "ring", problem),
              of_passes(lists(call, 64, true, 1)));
  }
  {  // each rank has half of the heads, whose lists lie apart: sequences one after the other
    const plan::Problem problem = problem_of(2, "contiguous", 4, 2, 3);
    const auto call = without_data(1, 2, 1, problem.owned(0), problem.owned(1), sequence);
    EXPECT_EQ(planned("infllm-v2:block=64,top=4,window=128", "ulysses", problem),
              of_passes(lists(call, 64, true, 2)));
  }
}

TEST(SparseTables, CountColumns) {
  const plan::Problem problem = problem_of(1, "contiguous", 4, 2, 1);
  const auto of_columns = [&](int kv_heads, std::int64_t heads_of_list) {
    auto in = without_data(1, 4, kv_heads, problem.owned(0), {.count = 8000}, sequence);
    in.mask = with_blocks(in.mask, 64, false, 4 / heads_of_list, heads_of_list);
    in.mask.blocks_excluded = true;
    in.kv_listed = &some_number;
    return in;
  };
  // Backward, each query head has columns of its own.
  const std::int64_t most =
      std::max(forward_tables(of_columns(2, 2), {}), backward_tables(of_columns(4, 1), {}));
  EXPECT_EQ(planned("vertical-slash:verticals=8000,slashes=1", "ring", problem), most);
  EXPECT_LT(planned("vertical-slash:verticals=0,slashes=1", "ring", problem), most);
}

}  // namespace
}  // namespace annulus::test
