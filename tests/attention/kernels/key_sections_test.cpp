// Long loops over keys for the kernel of Hopper's GPUs: which launch has which keys and queries.
#include <gtest/gtest.h>

#include <annulus/attention/sequence/layout.hpp>
#include <vector>

#include "attention/kernels/hopper/launch/key_sections.hpp"

namespace annulus::attention::hopper {
namespace {

constexpr std::int64_t million = 1 << 20;

gpu::Rows<const float> rows_of(const std::vector<float>& memory) {
  return {memory.data(), 0, 0, 1};
}

/// A zigzag shard of `tokens` under a causal mask, with rows of one element in memory of their own.
struct Shard {
  std::vector<float> q, k, out, finished;
  gpu::ForwardProblem<float> problem;

  Shard(std::int64_t tokens, int ranks, int rank) {
    const Layout layout = Layout::parse("zigzag");
    gpu::Input<float>& in = problem.in;
    in.q_positions = in.kv_positions = layout.shard(tokens, ranks, rank);
    const auto count = static_cast<std::size_t>(in.q_positions.count);
    for (std::vector<float>* of : {&q, &k, &out, &finished}) of->resize(count);
    in.q = rows_of(q);
    in.k = in.v = rows_of(k);
    problem.out = problem.lse = {out.data(), 0, 0, 1};
    problem.finished = {finished.data(), 0, 0, 1};
    problem.sinks = finished.data();
    in.mask.tokens = tokens;
    in.mask.right = 0;
    in.head_dim = in.v_head_dim = 64;
  }
};

TEST(KeySections, LongLoopsAlone) {
  const Shard shard(million, 2, 0);  // 524,288 rows of 512 bytes
  gpu::Input<float> in = shard.problem.in;
  EXPECT_EQ(keys_at_once(in), 65536);
  in.head_dim = 192;
  in.v_head_dim = 128;
  EXPECT_EQ(keys_at_once(in), 26112);  // 32 MB / 1280 bytes, in tiles of 128
  in.head_dim = in.v_head_dim = 64;
  in.mask.left = 131072;
  EXPECT_EQ(keys_at_once(in), 524288) << "a window that the cache holds";
  in.mask.left = 131073;
  EXPECT_EQ(keys_at_once(in), 65536);
  const std::int64_t start = 0;
  in.mask.document_starts = &start;
  EXPECT_EQ(keys_at_once(in), 524288) << "documents";
  in.mask.document_starts = nullptr;
  in.mask.dilation = 2;
  EXPECT_EQ(keys_at_once(in), 524288) << "dilation";
  in.mask.dilation = 1;
  in.kv_listed = &start;
  EXPECT_EQ(keys_at_once(in), 524288) << "listed keys";
  in.kv_listed = nullptr;
  in.kv_positions.count = 131072;
  EXPECT_EQ(keys_at_once(in), 131072) << "twice what a launch may have";
}

/// Each pair that the mask allows is in one launch, each launch merges into what the ones before have left,
/// and the last one finishes all rows.
void expect_each_pair_once(std::int64_t tokens, std::int64_t keys, bool fresh) {
  SCOPED_TRACE(testing::Message() << tokens << " tokens, " << keys << " keys" << (fresh ? ", fresh" : ""));
  const Shard shard(tokens, 2, 1);
  const gpu::Input<float>& all = shard.problem.in;
  std::vector<std::int64_t> pairs(shard.q.size());
  std::int64_t next = 0, skipped = 0;  // rows
  for_each_key_section(
      shard.problem, fresh, keys, [&](const gpu::ForwardProblem<float>& part, bool is_fresh) {
        const gpu::Input<float>& in = part.in;
        const std::int64_t first_query = in.q.data - all.q.data, first_key = in.k.data - all.k.data;
        const bool is_first = first_key == 0,
                   is_last = first_key + in.kv_positions.count == all.kv_positions.count;
        EXPECT_EQ(first_key, next);
        next += in.kv_positions.count;
        EXPECT_LE(in.kv_positions.count, keys);
        EXPECT_EQ(in.v.data, in.k.data);
        EXPECT_EQ(in.kv_positions, all.kv_positions.slice({first_key, next}));
        EXPECT_EQ(in.q_positions, all.q_positions.slice({first_query, all.q_positions.count}));
        EXPECT_EQ(first_query % 768, 0) << "rows share their tiles with others";
        EXPECT_EQ(part.out.data, shard.problem.out.data + first_query);
        EXPECT_EQ(part.lse.data, shard.problem.lse.data + first_query);
        EXPECT_EQ(is_fresh, fresh && is_first);
        EXPECT_EQ(part.finished.data, is_last ? shard.problem.finished.data : nullptr);
        EXPECT_EQ(part.sinks, is_last ? shard.problem.sinks : nullptr);
        if (is_fresh || is_last) EXPECT_EQ(first_query, 0) << "all rows are written";
        skipped += first_query;
        for (std::int64_t row = 0; row < in.q_positions.count; ++row)
          pairs[static_cast<std::size_t>(first_query + row)] +=
              in.kv_positions.rows_below(in.q_positions(row) + 1);
      });
  EXPECT_EQ(next, all.kv_positions.count);
  for (std::size_t row = 0; row < pairs.size(); ++row)
    ASSERT_EQ(pairs[row], static_cast<std::int64_t>(row) + 1) << "row " << row;
  if (keys < next / 2) EXPECT_GT(skipped, 0) << "queries in front of the keys have nothing to do";
}

TEST(KeySections, EachPairOnce) {
  for (const bool fresh : {false, true}) {
    expect_each_pair_once(16384, 16384, fresh);
    expect_each_pair_once(16384, 1024, fresh);
    expect_each_pair_once(10000, 1280, fresh);
  }
}

}  // namespace
}  // namespace annulus::attention::hopper
