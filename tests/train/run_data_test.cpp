#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <annulus/comm/loopback.hpp>
#include <annulus/data/headers.hpp>
#include <annulus/sequence/layout.hpp>
#include <array>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>

#include "train/run_data.hpp"
#include "train/tiny_run.hpp"

namespace annulus::train {
namespace {

using annulus::train::test::TinyRun;

/// How often each file of a folder has been opened since this was made, by anybody.
class Opens {
 public:
  explicit Opens(const std::filesystem::path& folder)
      : descriptor_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    // Closing is watched too, since events that follow their like are one.
    if (::inotify_add_watch(descriptor_, folder.c_str(), IN_OPEN | IN_CLOSE) < 0)
      throw std::runtime_error("no inotify");
  }
  Opens(const Opens&) = delete;
  Opens& operator=(const Opens&) = delete;
  ~Opens() { ::close(descriptor_); }

  std::map<std::string, int> count() {
    alignas(inotify_event) std::array<char, 65536> bytes;
    for (ssize_t size = 0; (size = ::read(descriptor_, bytes.data(), bytes.size())) > 0;)
      for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(bytes.data() + at);
        if ((event->mask & IN_OPEN) != 0 && event->len > 0) ++counts_[event->name];
        at += static_cast<ssize_t>(sizeof *event) + event->len;
      }
    return counts_;
  }

 private:
  int descriptor_;
  std::map<std::string, int> counts_;
};

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
}  // namespace annulus::train
