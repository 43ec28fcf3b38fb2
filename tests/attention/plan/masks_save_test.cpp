// What masks save, exactly: only rows that some rank still needs travel, and only to where they are needed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "attention/plan/support.hpp"

namespace annulus::plan {
namespace {

using test::BlockFile;
using test::for_sends;
using test::make_problem;
using test::on_nodes;
using test::rows_sent;

/// K, V, dK and dV of rings over keys.
void expect_key_rows(const Problem& problem, std::int64_t rows) {
  const Plan forward = make_ring(problem, Pass::forward), backward = make_ring(problem, Pass::backward);
  for (const Tensor tensor : {Tensor::k, Tensor::v}) EXPECT_EQ(rows_sent(forward, tensor), rows);
  for (const Tensor tensor : {Tensor::k, Tensor::v, Tensor::dk, Tensor::dv}) {
    EXPECT_EQ(rows_sent(backward, tensor), rows) << name_of(tensor);
  }
}

constexpr std::int64_t left = 10;  // keys that a window leaves before each query

/// A shard's range begins with the end of its first stripe; that of the last rank ends before its last
/// stripe, behind which there is nothing.
TEST(MasksSave, WindowsOnBlockStripedShardsSendOneRange) {
  const int ranks = 4;
  const std::int64_t stripe = 16, tokens = 5 * ranks * stripe;
  const Problem problem = make_problem(ranks, tokens, "block-striped:16", "window:10,0");
  expect_key_rows(problem, tokens - ranks * (stripe - left) - stripe);
}

/// Layers with a window of real models on four ranks: every schedule sends the bytes that follow from the
/// rows that windows reach over, and nothing else.
TEST(MasksSave, LayersWithWindowsExchangeTheBytesOfTheirReach) {
  struct Model {
    std::int64_t tokens, window;
    int heads, kv_heads, head_dim;
  };
  const int ranks = 4;
  // What all ranks send, in bf16 and sums in fp32.
  const auto bytes = [&](const Model& model, const char* schedule, const char* layout, Pass pass) {
    Problem problem = make_problem(ranks, model.tokens, layout, fmt::format("window:{},0", model.window),
                                   model.heads, model.kv_heads);
    problem.topology = Topology::uniform(ranks, ranks);
    problem.head_dim = model.head_dim;
    problem.batch = 1;
    problem.dtype = DType::bf16;
    const Plan plan = make_plan(schedule, problem, pass);
    std::int64_t sent = 0;
    for (int rank = 0; rank < ranks; ++rank) sent += traffic(plan, rank).sent_bytes;
    return sent;
  };
  for (const Model& model : {Model{65536, 4095, 32, 32, 128},  // OLMo 3 7B
                             Model{131072, 1023, 8, 4, 256},   // Gemma 3 4B
                             Model{32768, 127, 64, 8, 64}}) {  // gpt-oss
    const std::int64_t window = model.window, chunk = model.tokens / ranks / 2;
    // Inputs travel and sums come back. A zigzag shard is a front and a back chunk. A ring passes on the
    // range from one reach to the other, with what lies between; all-gather sends either reach to the one
    // rank that needs it.
    struct Rows {
      std::int64_t inputs, sums;
    };
    const Rows contiguous{(ranks - 1) * window, (ranks - 1) * window},
        zigzag{2 * (ranks - 1) * window, 2 * (ranks - 1) * window},
        zigzag_ring{(ranks - 2) * (2 * window + chunk) + 3 * window,
                    (ranks - 2) * (2 * window + chunk) + 2 * window};
    for (const auto& [schedule, layout, rows] : {std::tuple{"ring", "contiguous", contiguous},
                                                 {"burst", "contiguous", contiguous},
                                                 {"double-ring", "contiguous", contiguous},
                                                 {"hierarchical", "contiguous", contiguous},
                                                 {"topology-burst", "contiguous", contiguous},
                                                 {"all-gather", "contiguous", contiguous},
                                                 {"ring", "zigzag", zigzag_ring},
                                                 {"burst", "zigzag", zigzag_ring},
                                                 {"all-gather", "zigzag", zigzag}}) {
      SCOPED_TRACE(fmt::format("{}, {}, window {}", schedule, layout, window));
      const std::int64_t of_keys = model.kv_heads * model.head_dim, of_queries = model.heads * model.head_dim;
      EXPECT_EQ(bytes(model, schedule, layout, Pass::forward), rows.inputs * 2 * 2 * of_keys);  // K and V
      const bool queries = std::string_view(schedule).ends_with("burst");
      EXPECT_EQ(bytes(model, schedule, layout, Pass::backward),
                queries
                    ? rows.inputs * (2 * 2 * of_queries + 2 * 4 * model.heads) + rows.sums * 4 * of_queries
                    : rows.inputs * 2 * 2 * of_keys + rows.sums * 2 * 4 * of_keys);
    }
    // Of stripes of one row each is next to all others: all shards go everywhere, but for rows at the end.
    EXPECT_NEAR(double(bytes(model, "ring", "striped", Pass::forward)),
                double((ranks - 1) * model.tokens * 2 * 2 * model.kv_heads * model.head_dim),
                6.0 * 2 * 2 * model.kv_heads * model.head_dim);
  }
}

/// A shard sends what it holds of the document that does not end with it.
TEST(MasksSave, DocumentsSendWhatTheNextRanksGoOnWith) {
  const int ranks = 7;
  const std::int64_t rows = 40, length = 27;
  std::string mask = "documents:0";
  for (std::int64_t start = length; start < ranks * rows; start += length) mask += fmt::format(",{}", start);
  std::int64_t cut = 0;
  for (int rank = 1; rank < ranks; ++rank) cut += rank * rows % length;
  expect_key_rows(make_problem(ranks, ranks * rows, "contiguous", mask), cut);
}

/// Inside nodes 3 shards of 4 have a neighbour; that of the last rank goes to the next node's last rank and
/// from there to its first one.
TEST(MasksSave, WindowsOnRingsOfRings) {
  const int nodes = 3, size = 4;
  const Problem problem = on_nodes(nodes, size, nodes * size * 40, "contiguous", "window:10,0");
  const std::int64_t rows = left * (nodes * (size - 1) + 2 * (nodes - 1));
  EXPECT_EQ(rows_sent(make_hierarchical(problem, Pass::forward), Tensor::k), rows);
  for (const Tensor tensor : {Tensor::k, Tensor::v, Tensor::dk, Tensor::dv}) {
    EXPECT_EQ(rows_sent(make_hierarchical(problem, Pass::backward), tensor), rows) << name_of(tensor);
    EXPECT_EQ(rows_sent(make_double_ring(problem, Pass::backward), tensor), rows) << name_of(tensor);
  }
  EXPECT_EQ(rows_sent(make_topology_burst(problem, Pass::backward), Tensor::dq), rows);
}

/// Inputs shrink on their way, sums grow: rank 1 needs the first half of shard 0, rank 2 the second.
TEST(MasksSave, SlicesHaveTheRowsOfTheRanksAheadAndSumsThoseOfTheRanksBehind) {
  const BlockFile file({"0", "1", "0 2", "3", "1 4", "5"});
  const Problem problem = make_problem(3, 60, "contiguous", file.mask(10));
  const Plan plan = make_ring(problem, Pass::backward);
  std::vector<std::string> ways;
  for_sends(plan, [&](int rank, const Transfer& send) {
    const TensorSlice& slice = send.slice;
    EXPECT_EQ(slice.owner, 0);
    if (slice.tensor != Tensor::k && slice.tensor != Tensor::dk) return;
    ways.push_back(fmt::format("{} {} to {} rows {} to {}", name_of(slice.tensor), rank, send.peer,
                               slice.rows.begin, slice.rows.end));
  });
  EXPECT_EQ(ways, (std::vector<std::string>{"k 0 to 1 rows 0 to 20", "k 1 to 2 rows 10 to 20",
                                            "dk 1 to 2 rows 0 to 10", "dk 2 to 0 rows 0 to 20"}));
  test::check_plan(plan);
  test::check_plan(make_double_ring(problem, Pass::backward, 3));
}

/// The ring between the groups of a hybrid carries the reach of a window, for the heads of each rank.
TEST(MasksSave, HybridsSendPartsBetweenTheirGroups) {
  const int heads = 2, contexts = 3;
  const Problem problem = make_problem(6, 6 * 40, "contiguous", "window:10,0", 4, 4);
  const Plan plan = make_plan(fmt::format("hybrid:{}x{}", heads, contexts), problem, Pass::forward);
  std::int64_t between = 0;
  for_sends(plan, [&](int rank, const Transfer& send) {
    const bool same_group = rank / heads == send.peer / heads;
    if (send.slice.tensor == Tensor::k && !same_group)
      between += send.slice.rows.size() * send.slice.heads.size();
  });
  EXPECT_EQ(between, (contexts - 1) * left * problem.kv_heads);
}

}  // namespace
}  // namespace annulus::plan
