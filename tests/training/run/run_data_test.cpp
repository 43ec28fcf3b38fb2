

#include "training/run/run_data.hpp"
#include "training/run/opens.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

TEST(RunData, OneRankOfANodeOpensTheShards) {
  const TinyRun tiny;
  const Config config = tiny.config("run");
  const std::filesystem::path shards = config.data.shards.front();
  Opens once(shards);
  const std::vector<data::ShardHeader> headers = data::read_headers(std::array{shards});
  const auto by_one = once.count();
  ASSERT_GT(headers.size(), 3u);
  ASSERT_GE(by_one.size(), headers.size());

  Opens by_ranks(shards), by_reading(shards);
  comm::run_loopback(Topology::uniform(4, 4), [&](comm::Communicator& world) {
    const auto dataset = open_data(world, config);
    EXPECT_EQ(dataset->shards().size(), headers.size());
    EXPECT_EQ(dataset->tokens(), data::TokenDataset(headers, config.data.sequence_length).tokens());
    world.barrier();
    if (world.rank() == 0) {
      EXPECT_EQ(by_ranks.count(), by_one);
    }
    world.barrier();
    // Tokens are read by every rank, of the shards that hold them.
    dataset->read(0, Layout().shard(config.data.sequence_length, 1, 0));
  });
  for (const auto& [name, count] : by_reading.count())
    EXPECT_EQ(count > by_one.at(name), name == std::filesystem::path(headers.front().path).filename())
        << name;
}

}  // namespace
}  // namespace annulus::training::test
