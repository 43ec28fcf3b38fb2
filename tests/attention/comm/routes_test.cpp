// The two stages of gathers and reductions: who sends to whom, that everything gets where it belongs, and
// that reductions have the bits of one stage.
#include <annulus/attention/comm/loopback.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>

#include "attention/comm/routes.hpp"
#include "attention/comm/suite/numbers.hpp"
#include "attention/comm/suite/suite.hpp"
#include "attention/comm/throttled_wire.hpp"

namespace annulus::comm {
namespace {

using suite::host_queue;

/// Carries out the stages of all ranks: a stage of all of them, then the next one.
void carry_out(const std::vector<std::vector<CollectiveStage>>& stages) {
  for (std::size_t s = 0; s < stages.at(0).size(); ++s) {
    for (const auto& of_rank : stages)
      if (of_rank.at(s).before) of_rank[s].before(host_queue());
    std::map<std::pair<int, int>, std::deque<Send>> sent;
    for (std::size_t r = 0; r < stages.size(); ++r)
      for (const Send& send : stages[r].at(s).sends) sent[{static_cast<int>(r), send.peer}].push_back(send);
    for (std::size_t r = 0; r < stages.size(); ++r) {
      for (const Receive& receive : stages[r].at(s).receives) {
        auto& box = sent[{receive.peer, static_cast<int>(r)}];
        ASSERT_FALSE(box.empty());
        ASSERT_EQ(box.front().bytes, receive.bytes);
        std::memcpy(receive.data, box.front().data, receive.bytes);
        box.pop_front();
      }
    }
    for (const auto& [pair, box] : sent) EXPECT_TRUE(box.empty()) << pair.first << " to " << pair.second;
  }
}

std::set<int> peers_of(const std::vector<CollectiveStage>& stages) {
  std::set<int> peers;
  for (const CollectiveStage& stage : stages)
    for (const Send& send : stage.sends) peers.insert(send.peer);
  return peers;
}

/// Bytes that rank 1 sends to other nodes.
std::size_t bytes_between(const Topology& topology, const std::vector<CollectiveStage>& stages) {
  std::size_t bytes = 0;
  for (const CollectiveStage& stage : stages)
    for (const Send& send : stage.sends)
      if (!topology.same_node(1, send.peer)) bytes += send.bytes;
  return bytes;
}

const std::array topologies = {Topology::uniform(8, 4),  Topology::uniform(8, 2), Topology::uniform(9, 3),
                               Topology::uniform(8, 8),  Topology::uniform(4, 1), Topology({3, 2}),
                               Topology::uniform(12, 4), Topology::uniform(96, 8)};

std::size_t peers_of_one(const Topology& topology, bool in_two_stages) {
  return static_cast<std::size_t>(in_two_stages ? topology.ranks_on(0) - 1 + topology.nodes() - 1
                                                : topology.ranks() - 1);
}

/// Blocks differ in size from rank to rank, and some are empty.
std::size_t bytes_of(int rank) {
  return static_cast<std::size_t>(rank % 4);
}

TEST(Routes, GathersBringEveryBlockToAll) {
  for (const Topology& topology : topologies) {
    SCOPED_TRACE(topology.to_string());
    const auto ranks = static_cast<std::size_t>(topology.ranks());
    const auto byte = [](int rank, std::size_t i) { return static_cast<std::byte>(rank * 3 + int(i) + 1); };
    using Block = std::array<std::byte, 3>;
    std::vector<Block> own(ranks);
    std::vector<std::vector<Block>> all(ranks, std::vector<Block>(ranks));
    std::vector<std::vector<CollectiveStage>> stages;
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      for (std::size_t i = 0; i < bytes_of(rank); ++i) own[r][i] = byte(rank, i);
      const GatherRoute gather{
          .own = own[r].data(),
          .place = [&, r](int from) { return all[r][static_cast<std::size_t>(from)].data(); },
          .bytes = bytes_of};
      stages.push_back(gather.stages(topology, rank));
    }
    carry_out(stages);
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t from = 0; from < ranks; ++from)
        for (std::size_t i = 0; i < bytes_of(static_cast<int>(from)) && from != r; ++i)
          EXPECT_EQ(all[r][from][i], byte(static_cast<int>(from), i)) << "from " << from << " at " << r;
    EXPECT_LE(peers_of(stages[1]).size(),
              peers_of_one(topology, in_two_stages(topology)));  // empty blocks need none
  }
}

/// Carries out a reduction of blocks of `count(r)` elements for rank r on all ranks. Checks every result, and
/// returns the stages of rank 1.
template <class T>
std::vector<CollectiveStage> check_reduction(const Topology& topology, ReduceOp op,
                                             const std::function<std::size_t(int)>& count) {
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  constexpr std::size_t largest = 3;
  std::vector<std::vector<T>> own(ranks, std::vector<T>(ranks * largest)),
      memory(ranks, std::vector<T>((ranks - 1) * largest));
  std::vector<ReductionRoute> routes;
  std::vector<std::vector<CollectiveStage>> stages;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < own[r].size(); ++i) own[r][i] = suite::contribution<T>(rank, i);
    const auto block = [of = own[r].data()](int to) {
      return reinterpret_cast<const std::byte*>(of + static_cast<std::size_t>(to) * largest);
    };
    routes.push_back({.block = block,
                      .count = count,
                      .memory = reinterpret_cast<std::byte*>(memory[r].data()),
                      .type = dtype_of<T>,
                      .op = op});
    stages.push_back(routes.back().stages(topology, rank));
  }
  carry_out(stages);
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<T> result(count(rank)), wanted(result.size());
    reduce_in_order(host_queue(), dtype_of<T>, op, routes[r].arrived(topology, rank), result.data(),
                    result.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      wanted[i] = suite::expected<T>(topology.ranks(), r * largest + i, op);
    EXPECT_TRUE(suite::same_bits(result.data(), wanted.data(), wanted.size())) << "rank " << rank;
  }
  return stages[1];
}

TEST(Routes, ReductionsHaveTheSameBitsOnAllTopologies) {
  for (const Topology& topology : topologies) {
    SCOPED_TRACE(topology.to_string());
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      const auto stages = check_reduction<float>(topology, op, bytes_of);
      EXPECT_LE(peers_of(stages).size(),  // empty blocks need none
                peers_of_one(topology, combines_in_two_stages(topology, DType::f32)));
      check_reduction<double>(topology, op, bytes_of);
      check_reduction<bfloat16>(topology, op, bytes_of);
      check_reduction<std::int64_t>(topology, op, bytes_of);
    }
  }
}

TEST(Routes, OneBlockForEachNodeCrossesTheNetwork) {
  const auto crossing = [](const Topology& topology, auto zero) {
    const auto stages =
        check_reduction<decltype(zero)>(topology, ReduceOp::sum, [](int) { return std::size_t{1}; });
    return bytes_between(topology, stages) / sizeof zero;
  };
  EXPECT_EQ(crossing(Topology::uniform(12, 4), 0.0f), 2u);
  EXPECT_EQ(crossing(Topology::uniform(96, 8), 0.0), 11u);
  // Sums of three ranks are no part of the sum of all, and sums of bf16 would be rounded.
  EXPECT_EQ(crossing(Topology::uniform(9, 3), 0.0f), 6u);
  EXPECT_EQ(crossing(Topology::uniform(12, 4), bfloat16()), 8u);
}

TEST(Routes, ARankOf1024Has134Peers) {
  const Topology topology = Topology::uniform(1024, 8);
  std::vector<float> memory(1024);
  const auto place = [&](int r) {
    return reinterpret_cast<std::byte*>(&memory[static_cast<std::size_t>(r)]);
  };
  const auto one = [](int) { return std::size_t{1}; };
  const GatherRoute gather{.own = place(333), .place = place, .bytes = one};
  const ReductionRoute reduction{.block = place, .count = one, .memory = place(0)};
  std::set<int> peers = peers_of(gather.stages(topology, 333));
  peers.merge(peers_of(reduction.stages(topology, 333)));
  EXPECT_EQ(peers.size(), 7u + 127u);
}

/// Every collective that moves much data, each alone, on ranks that are threads.
TEST(Routes, CollectivesHaveFewPeersAndTheBitsOfOneStage) {
  constexpr std::size_t count = 40000;  // of an all_reduce: more than everybody gets whole
  const auto collectives = [](Communicator& comm, int which) {
    const auto ranks = static_cast<std::size_t>(comm.size()), rank = static_cast<std::size_t>(comm.rank());
    std::vector<float> values(count * ranks), result(count);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = suite::contribution<float>(comm.rank(), i);
    if (which == 0) {
      result.assign(values.begin(), values.begin() + count);
      comm.all_reduce(host_queue(), result.data(), count, DType::f32, ReduceOp::sum);
    } else if (which == 1) {
      comm.start_reduce_scatter(host_queue(), values.data(), result.data(), {.count = count}, 0).wait();
    } else {
      const std::vector<float> mine(values.begin(), values.begin() + 100);
      std::vector<float> all(100 * ranks);
      if (which == 2) comm.all_gather(host_queue(), mine.data(), all.data(), 400);
      if (which == 3) comm.start_all_gather(host_queue(), mine.data(), all.data(), 400, 0).wait();
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_EQ(all[i], suite::contribution<float>(static_cast<int>(i / 100), i % 100));
      return;
    }
    std::vector<float> wanted(count);
    for (std::size_t i = 0; i < count; ++i)
      wanted[i] = suite::expected<float>(comm.size(), which == 0 ? i : rank * count + i, ReduceOp::sum);
    EXPECT_TRUE(suite::same_bits(result.data(), wanted.data(), count));
  };
  for (const Topology& topology : {Topology::uniform(8, 4), Topology::uniform(8, 2), Topology::uniform(9, 3),
                                   Topology::uniform(8, 8), Topology::uniform(4, 1), Topology({3, 2})}) {
    for (const int which : {0, 1, 2, 3}) {
      SCOPED_TRACE(topology.to_string() + ", collective " + std::to_string(which));
      ThrottledWire wire;
      run_loopback(topology, [&](Communicator& comm) { collectives(comm, which); }, {.wire = &wire});
      // An all_reduce is a reduction and a gather.
      const bool two_stages =
          which < 2 ? combines_in_two_stages(topology, DType::f32) : in_two_stages(topology);
      for (const auto& [rank, peers] : wire.peers())
        EXPECT_EQ(peers.size(), peers_of_one(topology, two_stages)) << rank;
    }
  }
}

}  // namespace
}  // namespace annulus::comm
