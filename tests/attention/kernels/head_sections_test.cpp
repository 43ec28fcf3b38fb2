// Block lists of heads for the kernel of Hopper's GPUs: which launch has which heads, and what a bit stands
// for.
#include <gtest/gtest.h>

#include <annulus/attention/sequence/layout.hpp>
#include <vector>

#include "attention/kernels/hopper/launch/head_sections.hpp"

namespace annulus::attention::hopper {
namespace {

/// Addresses that nobody reads.
template <class T>
T* address(std::int64_t elements) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(elements) * sizeof(T));
}

/// Two sequences of so many rows, with heads of 128.
gpu::Input<float> problem(std::int64_t rows, int heads, int kv_heads) {
  const Layout layout;
  gpu::Input<float> in;
  const auto of_heads = [&](int count) {
    return gpu::Rows<const float>{nullptr, count * rows * 128, rows * 128, 128};
  };
  in.q = of_heads(heads);
  in.k = in.v = of_heads(kv_heads);
  in.q_positions = in.kv_positions = layout.shard(rows, 1, 0);
  in.mask.tokens = rows;
  in.mask.block_size = 64;
  in.mask.block_row_starts = address<const std::int64_t>(1);
  in.mask.block_lists = 2 * heads;
  in.mask.heads_of_list = 1;
  in.batch = 2;
  in.heads = heads;
  in.kv_heads = kv_heads;
  return in;
}

TEST(HeadSections, AllHeadsTogetherWhereTablesAreSmall) {
  int calls = 0;
  for_each_section(problem(4096, 8, 4), [&](const HeadSection& section) {
    ++calls;
    EXPECT_EQ(section.sequences, 2);
    EXPECT_EQ(section.kv_heads, 4);
  });
  EXPECT_EQ(calls, 1);
}

/// `heads_of_list`: of the two heads that share a kv head.
void expect_each_head_once(int heads_of_list) {
  SCOPED_TRACE(heads_of_list);
  const std::int64_t rows = 1 << 17;
  gpu::Input<float> in = problem(rows, 40, 20);
  in.mask.block_lists /= heads_of_list;
  in.mask.heads_of_list = heads_of_list;
  in.kv_listed = address<const std::int64_t>(1);
  const std::int64_t block_rows = in.mask.block_rows();
  int next = 0;  // of the kv heads of both sequences
  for_each_section(in, [&](const HeadSection& section) {
    const gpu::Input<float> part = section.of(in);
    EXPECT_EQ(section.sequences, 1);
    EXPECT_EQ(section.batch * 20 + section.first_kv_head, next);
    EXPECT_EQ(part.batch, 1);
    EXPECT_LE(part.kv_heads, largest_section(in).kv_heads);
    EXPECT_EQ(part.heads, 2 * part.kv_heads);
    EXPECT_EQ(part.mask.block_lists, part.heads / heads_of_list);
    EXPECT_LE(part.mask.block_lists, lists_at_once(in.mask, in.q_positions, in.kv_positions, true));
    EXPECT_EQ(part.q.data, address<const float>(2 * next * rows * 128));
    EXPECT_EQ(part.k.data, address<const float>(next * rows * 128));
    EXPECT_EQ(part.v.data, part.k.data);
    EXPECT_EQ(part.kv_listed, address<const std::int64_t>(1 + next * rows));
    EXPECT_EQ(part.mask.block_row_starts,
              address<const std::int64_t>(1 + next * (2 / heads_of_list) * (block_rows + 1)));
    next += section.kv_heads;
  });
  EXPECT_EQ(next, 40);
}

TEST(HeadSections, EachHeadOnceWhereTablesAreLarge) {
  for (const int heads_of_list : {1, 2}) expect_each_head_once(heads_of_list);
}

TEST(HeadSections, HeadsOfAKvHeadOneAfterTheOtherWhereTheirTablesAreLarge) {
  const std::int64_t rows = 1 << 19;
  const gpu::Input<float> in = problem(rows, 10, 2);
  const std::int64_t lists = lists_at_once(in.mask, in.q_positions, in.kv_positions, false);
  ASSERT_EQ(lists, 2);  // fewer than the five heads of a kv head, and no divisor of them
  const auto block_rows = in.mask.block_rows();
  std::vector<int> first_of_group, heads;
  int next = 0;  // of the heads of both sequences
  for_each_section(in, [&](const HeadSection& section) {
    const gpu::Input<float> part = section.of(in);
    EXPECT_EQ(part.batch, 1);
    EXPECT_EQ(part.kv_heads, 1);
    EXPECT_EQ(part.mask.block_lists, part.heads);
    EXPECT_EQ(part.q.data, address<const float>(next * rows * 128));
    EXPECT_EQ(part.k.data, address<const float>(next / 5 * rows * 128));
    EXPECT_EQ(part.mask.block_row_starts, address<const std::int64_t>(1 + next * (block_rows + 1)));
    first_of_group.push_back(section.first_head);
    heads.push_back(part.heads);
    next += part.heads;
  });
  EXPECT_EQ(next, 20);
  EXPECT_EQ(first_of_group, (std::vector{0, 2, 4, 0, 2, 4, 0, 2, 4, 0, 2, 4}));
  EXPECT_EQ(heads, (std::vector{2, 2, 1, 2, 2, 1, 2, 2, 1, 2, 2, 1}));
}

TEST(HeadSections, ListsAreNotDividedWhereHeadsOfAKvHeadAre) {
  const std::int64_t rows = 1 << 19;
  gpu::Input<float> in = problem(rows, 12, 2);
  in.mask.block_lists /= 2;
  in.mask.heads_of_list = 2;
  in.kv_listed = address<const std::int64_t>(1);
  std::vector<int> heads;
  int next = 0;  // of the heads of both sequences
  for_each_section(in, [&](const HeadSection& section) {
    const gpu::Input<float> part = section.of(in);
    EXPECT_EQ(2 * part.mask.block_lists, part.heads);
    EXPECT_EQ(part.mask.block_row_starts,
              address<const std::int64_t>(1 + next / 2 * (in.mask.block_rows() + 1)));
    EXPECT_EQ(part.kv_listed, address<const std::int64_t>(1 + next / 6 * rows));
    heads.push_back(part.heads);
    next += part.heads;
  });
  EXPECT_EQ(heads, std::vector<int>(12, 2));  // tables of one list at once, as keys are listed
}

TEST(HeadSections, HaveTheBlocksOfTheirQueries) {
  gpu::Input<float> in = problem(1 << 17, 40, 20);
  in.mask.block_row_starts = nullptr;
  in.mask.query_blocks = address<const std::uint32_t>(1);
  int heads = 0;
  for_each_section(in, [&](const HeadSection& section) {
    EXPECT_EQ(section.of(in).mask.query_blocks,
              address<const std::uint32_t>(1 + heads * in.mask.tokens * in.mask.words_of_query()));
    heads += section.sequences * section.kv_heads * 2;
  });
  EXPECT_EQ(heads, 80);
}

TEST(BitsSize, QueriesWithBlocksOfTheirOwnHaveARowOfBitsEach) {
  const gpu::Input<float> lists = problem(4096, 8, 4);
  MaskRule of_queries = lists.mask;
  of_queries.block_row_starts = nullptr;
  of_queries.query_blocks = address<const std::uint32_t>(1);
  const auto size = [&](const MaskRule& mask, bool own_is_query) {
    return BitsSize::of(mask, own_is_query, lists.q_positions, false, lists.kv_positions, false, 4096);
  };
  EXPECT_EQ(size(lists.mask, true).rows, 64);  // blocks
  EXPECT_EQ(size(of_queries, true).rows, 4096);
  EXPECT_TRUE(size(of_queries, true).of_32_rows);  // of keys
  EXPECT_EQ(size(of_queries, false).rows, 64);
  EXPECT_FALSE(size(of_queries, false).of_32_rows);  // 32 queries have different blocks
  EXPECT_EQ(size(of_queries, false).words_of_row, 128);
}

TEST(BitsSize, ABitStandsFor32RowsWhereTheyLieInOneBlock) {
  const auto of_32_rows = [](const char* layout, std::int64_t tokens, std::int64_t block, int ranks = 4) {
    const PositionMap shard = Layout::parse(layout).shard(tokens, ranks, ranks > 1 ? 1 : 0);
    bool together = true;
    for (std::int64_t row = 0; row < shard.count; ++row)
      together = together && shard(row) / block == shard(row / 32 * 32) / block;
    const bool said = words_lie_in_blocks(shard, block);
    EXPECT_TRUE(together || !said) << layout << ", " << tokens << " tokens, blocks of " << block;
    return said;
  };
  for (const char* layout : {"contiguous", "zigzag", "block-striped:64", "block-striped:32"})
    EXPECT_TRUE(of_32_rows(layout, 4096, 64)) << layout;
  for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:64", "block-striped:48"}) {
    of_32_rows(layout, 4100, 64);
    EXPECT_FALSE(of_32_rows(layout, 4096, 40)) << layout;
  }
  EXPECT_FALSE(of_32_rows("striped", 4096, 64));
  for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:48"})
    EXPECT_TRUE(of_32_rows(layout, 4096, 64, 1)) << layout << " on one rank";
}

}  // namespace
}  // namespace annulus::attention::hopper
