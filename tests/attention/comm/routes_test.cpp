// The two stages of gathers and sums: who sends to whom, that everything gets where it belongs, and that sums
// have the bits of one stage.
#include <annulus/attention/comm/loopback.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
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

const std::array topologies = {Topology::uniform(8, 4), Topology::uniform(8, 2), Topology::uniform(9, 3),
                               Topology::uniform(8, 8), Topology::uniform(4, 1), Topology({3, 2}),
                               Topology::uniform(96, 8)};

std::size_t peers_of_one(const Topology& topology) {
  const bool two = topology.nodes() > 1 && topology.is_uniform() && topology.ranks_on(0) > 1;
  return static_cast<std::size_t>(two ? topology.ranks_on(0) - 1 + topology.nodes() - 1
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
    EXPECT_LE(peers_of(stages[1]).size(), peers_of_one(topology));  // empty blocks need none
  }
}

TEST(Routes, ContributionsReachTheirOwnerUnsummed) {
  for (const Topology& topology : topologies) {
    SCOPED_TRACE(topology.to_string());
    const auto ranks = static_cast<std::size_t>(topology.ranks());
    const auto byte = [](int from, int to, std::size_t i) {
      return static_cast<std::byte>(from * 7 + to * 5 + int(i) + 1);
    };
    constexpr std::size_t largest = 3;
    std::vector<std::vector<std::byte>> own(ranks, std::vector<std::byte>(ranks * largest)),
        memory(ranks, std::vector<std::byte>(contribution_blocks(topology) * largest));
    std::vector<std::vector<CollectiveStage>> stages;
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const auto block = [&, r](int to) { return own[r].data() + static_cast<std::size_t>(to) * largest; };
      for (int to = 0; to < topology.ranks(); ++to)
        for (std::size_t i = 0; i < bytes_of(to); ++i) block(to)[i] = byte(rank, to, i);
      stages.push_back(
          ContributionRoute{.block = block, .bytes = bytes_of, .memory = memory[r].data()}.stages(topology,
                                                                                                  rank));
    }
    carry_out(stages);
    for (int rank = 0; rank < topology.ranks(); ++rank)
      for (int from = 0; from < topology.ranks(); ++from)
        for (std::size_t i = 0; i < bytes_of(rank) && from != rank; ++i) {
          const auto place = static_cast<std::size_t>(from > rank ? from - 1 : from);
          EXPECT_EQ(memory[static_cast<std::size_t>(rank)][place * bytes_of(rank) + i], byte(from, rank, i))
              << "from " << from << " at " << rank;
        }
    EXPECT_LE(peers_of(stages[1]).size(), peers_of_one(topology));  // empty blocks need none
  }
}

TEST(Routes, ARankOf1024Has134Peers) {
  const Topology topology = Topology::uniform(1024, 8);
  std::vector<std::byte> memory(contribution_blocks(topology));
  const std::byte own{};
  const auto one = [](int) { return std::size_t{1}; };
  const GatherRoute gather{
      .own = &own, .place = [&](int r) { return &memory[static_cast<std::size_t>(r)]; }, .bytes = one};
  const ContributionRoute contribute{
      .block = [&](int) { return &own; }, .bytes = one, .memory = memory.data()};
  std::set<int> peers = peers_of(gather.stages(topology, 333));
  peers.merge(peers_of(contribute.stages(topology, 333)));
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
      for (const auto& [rank, peers] : wire.peers()) EXPECT_EQ(peers.size(), peers_of_one(topology)) << rank;
    }
  }
}

}  // namespace
}  // namespace annulus::comm
