#include <chrono>

#include "training/data/shards.hpp"

namespace annulus::data {
namespace {

void wait_for(const BackgroundVerification& verification) {
  for (int i = 0; i < 10000 && !verification.done(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(verification.done());
}

using VerifyInBackground = annulus::test::FolderTest;

TEST_F(VerifyInBackground, FindsAChangedToken) {
  std::vector<std::string> paths;
  for (const char* name : {"a.h5", "b.h5", "c.h5"}) {
    paths.push_back(folder_.file(name));
    test::RawShard{}.write(paths.back());
  }
  {
    const BackgroundVerification verification(paths);
    wait_for(verification);
    EXPECT_EQ(verification.problem(), "");
  }
  std::string bytes = io::read_text(paths[1]);
  const auto at = bytes.find(std::string("a\0b\0\0\1c\0", 8));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 'b';  // an id like others: nothing but the checksum tells
  folder_.write("b.h5", bytes);
  const BackgroundVerification verification(paths);
  wait_for(verification);
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(verification.problem(), mentions(paths[1], "checksum"));  // it stays known
}

TEST_F(VerifyInBackground, StopsWhenItIsNotNeeded) {
  test::RawShard<std::uint8_t> shard;
  shard.tokenizer = "own";
  shard.vocabulary = 256;
  shard.end_of_document = 0;
  shard.tokens.assign(std::size_t{64} << 20, 1);
  shard.documents = {0};
  shard.write(folder_.file("a.h5"));
  const auto begin = std::chrono::steady_clock::now();
  { const BackgroundVerification verification(std::vector<std::string>(1000, folder_.file("a.h5"))); }
  // All of it would be 64 GB.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(VerifyInBackground, ABadIdIsToldWhereTheChecksumIsRight) {
  test::RawShard<> shard;
  shard.tokens[3] = 300;
  shard.write(folder_.file("a.h5"));
  const BackgroundVerification verification({folder_.file("a.h5")});
  wait_for(verification);
  EXPECT_THAT(verification.problem(), mentions("offset 3", "id 300"));
}

}  // namespace
}  // namespace annulus::data
