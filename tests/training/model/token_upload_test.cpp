// Token ids on their way to a device.
#include <gtest/gtest.h>

#include "support/exec.hpp"
#include "training/model/ops/token_upload.hpp"

namespace annulus::model {
namespace {

using annulus::test::TestExec;

std::vector<std::int32_t> on_the_host(const TestExec& exec, const TokenUpload<TestExec>::Ids& ids) {
  std::vector<std::int32_t> host(ids.size());
  Kokkos::deep_copy(exec, Array1<std::int32_t, HostExec>(host.data(), host.size()), ids);
  exec.fence("annulus::test: the host looks");
  return host;
}

// Passes of an optimizer step are without number, staging memory is not.
TEST(TokenUpload, PassesWithoutNumberShareStagingMemory) {
  constexpr std::int64_t rows = 1000;
  const TestExec exec = annulus::test::rank_instance();
  const std::int64_t before = memory_use(MemoryKind::host).total_current;
  TokenUpload<TestExec> ids(exec, rows);
  std::vector<std::int32_t> tokens(rows), targets(rows);
  for (std::int32_t pass = 0; pass < 100; ++pass) {
    for (std::int32_t row = 0; row < rows; ++row) {
      tokens[static_cast<std::size_t>(row)] = (row * 7 + pass) % 1000;
      targets[static_cast<std::size_t>(row)] = row + 1000 * pass;
    }
    ids.set(exec, tokens, targets);
    ids.sort(exec);
    EXPECT_EQ(on_the_host(exec, ids.tokens()), tokens) << pass;
    EXPECT_EQ(on_the_host(exec, ids.targets()), targets) << pass;
    std::vector<std::int32_t> sorted;
    for (const std::int32_t row : on_the_host(exec, ids.order()))
      sorted.push_back(tokens[static_cast<std::size_t>(row)]);
    EXPECT_TRUE(std::ranges::is_sorted(sorted)) << pass;
  }
  // Tokens, targets and order of eight passes, and on the host those that kernels read.
  const std::int64_t one = 3 * rows * static_cast<std::int64_t>(sizeof(std::int32_t));
  EXPECT_LE(memory_use(MemoryKind::host).total_current - before, 9 * one + 4096);
}

}  // namespace
}  // namespace annulus::model
