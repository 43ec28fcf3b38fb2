// Bytes of the tables of the kernel for Hopper's GPUs: what its launches ask for, counted by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/base/division.hpp>

#include "attention/kernels/table_memory.hpp"
#include "support/attention/without_data.hpp"

namespace annulus::attention {
namespace {

using test::without_data, test::with_blocks;

/// Operands of heads that have blocks of each query, 64 keys in a block.
Operands<bfloat16, HostExec> blocks_of_queries(int batch, int heads, const PositionMap& rows) {
  auto in = without_data(batch, heads, heads, rows, rows, rows.count);
  in.mask = with_blocks(in.mask, 64, true, std::int64_t{batch} * heads, 1);
  return in;
}

/// Rows 0, 1, … as they stand in a list of runs, of which nobody knows that 32 lie in one block.
PositionMap in_runs(std::int64_t rows, std::array<RowRun, 2>& runs) {
  runs = {RowRun{0, 0}, RowRun{rows, rows}};
  return {.count = rows, .runs = runs.data(), .device_runs = nullptr, .run_count = 1};
}

std::int64_t rounded(std::int64_t bytes) {
  return round_up(bytes, 256);
}

/// Bytes of tables of tiles of 64 × 64 with a list for each of `lists` heads, each with rows of bits. Bits
/// that stand for 32 rows need no byte for each pair of tiles.
std::int64_t tables(std::int64_t lists, std::int64_t rows, std::int64_t bit_rows, std::int64_t words) {
  const std::int64_t tiles = rows / 64;
  const bool of_32_rows = words == rows / 1024;
  return rounded(8 * rows) + rounded(16 * lists * tiles * tiles) + rounded(16 * lists * tiles) +
         rounded(4 * lists * tiles) + 256 + rounded(4 * rows) + rounded(4 * lists * bit_rows * words) +
         (of_32_rows ? 0 : rounded(lists * tiles * tiles));
}

// InfLLM-V2 of two heads and 4096 tokens: a query has a row of bits of 64 blocks, a block one of 4096
// queries.
TEST(TableMemory, BlocksOfEachQuery) {
  constexpr std::int64_t rows = 4096;
  std::array<RowRun, 2> runs{};
  const PositionMap whole = Layout().shard(rows, 1, 0), cut = in_runs(rows, runs);
  for (const bool of_32_rows : {true, false}) {
    const auto in = blocks_of_queries(2, 2, of_32_rows ? whole : cut);
    const std::int64_t of_queries = tables(4, rows, rows, of_32_rows ? rows / 1024 : rows / 32),
                       of_keys = tables(4, rows, rows / 64, rows / 32) + 4 * rows * 8;  // and LSE and D
    EXPECT_EQ(forward_tables(in, {}), of_queries);
    EXPECT_EQ(backward_tables(in, {}), std::max(of_queries, of_keys));
  }
}

TEST(TableMemory, NoneWhereAnotherKernelRuns) {
  auto in = blocks_of_queries(1, 2, Layout().shard(4096, 1, 0));
  for (const Kernel kernel : {Kernel::automatic, Kernel::tensor_cores, Kernel::hopper})
    EXPECT_GT(forward_tables(in, kernel), 0);
  for (const Kernel kernel : {Kernel::portable, Kernel::host_simd, Kernel::mma})
    EXPECT_EQ(forward_tables(in, kernel), 0);
  in.mask.block_size = 512;  // gathered by mma
  EXPECT_EQ(forward_tables(in, {}), 0);
  EXPECT_EQ(backward_tables(in, {}), 0);
  EXPECT_GT(backward_tables(in, Kernel::hopper), 0);
  const Array4<const float, HostExec> array(static_cast<const float*>(nullptr), 1, 2, 4096, 64);
  EXPECT_EQ(forward_tables(
                Operands<float, HostExec>{array, array, array, in.q_positions, in.kv_positions, in.mask}, {}),
            0);
}

// Fewer heads at once where the tables of all would be large: 8 of 12 heads with 32,768 tokens.
TEST(TableMemory, LargeTablesAreOfSomeHeads) {
  constexpr std::int64_t rows = 32768;
  std::array<RowRun, 2> runs{};
  EXPECT_EQ(forward_tables(blocks_of_queries(1, 12, in_runs(rows, runs)), {}),
            tables(8, rows, rows, rows / 32));
  EXPECT_EQ(forward_tables(blocks_of_queries(1, 12, Layout().shard(rows, 1, 0)), {}),
            tables(12, rows, rows, rows / 1024));
}

}  // namespace
}  // namespace annulus::attention
