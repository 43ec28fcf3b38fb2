// How to make a mask (docs/contributing.md): attention sinks (Xiao et al., Efficient Streaming Language
// Models) as a block list that a program writes. Nothing in the library changes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/attention/comm/loopback.hpp>
#include <string>

#include "attention/executor/attention_case.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::test {
namespace {

/// The block list (docs/formats/block-mask.md) of queries that see the first block and `window` blocks up to
/// their own.
std::string sinks_and_window(std::int64_t blocks, std::int64_t window) {
  std::string text = fmt::format("annulus-block-mask 1\nblocks {}\n", blocks);
  for (std::int64_t row = 0; row < blocks; ++row) {
    const std::int64_t first = std::max<std::int64_t>(row - window + 1, 0);
    text += fmt::format("{}:{} {}-{}\n", row, first > 0 ? " 0" : "", first, row);
  }
  return text + "end\n";
}

TEST(MaskExample, SinksAndWindowSaveWorkAndStayExact) {
  constexpr std::int64_t tokens = 120, block = 10, window = 3;
  const TemporaryFolder folder;
  const std::string file = folder.write("sinks", sinks_and_window(tokens / block, window));
  const Mask mask = Mask::parse(fmt::format("causal+blocks:{},{}", block, file), tokens);

  std::int64_t pairs = 0;
  for (std::int64_t q = 0; q < tokens; ++q) {
    for (std::int64_t k = 0; k < tokens; ++k) {
      const bool sees = k <= q && (k / block == 0 || q / block - k / block < window);
      ASSERT_EQ(mask.rule().allows(q, k), sees) << q << " " << k;
      pairs += sees;
    }
  }
  const PositionMap whole = Layout().shard(tokens, 1, 0);
  EXPECT_EQ(mask.pairs(whole, whole), pairs);

  const auto sample = make_sample(mask.to_string(), {.tokens = tokens});
  comm::run_loopback(Topology::uniform(3, 2), [&](comm::Communicator& communicator) {
    expect_correct(run(communicator, *sample, "burst", Layout::parse("striped")), "sinks");
  });
}

}  // namespace
}  // namespace annulus::test
