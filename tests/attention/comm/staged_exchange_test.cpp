// Exchanges through pinned memory. Where Kokkos knows no device the host stands for it: the same code copies.
#include <annulus/attention/comm/communicator.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <vector>

#include "attention/comm/staged/state.hpp"
#include "support/allocations.hpp"

namespace annulus::comm {
namespace {

// `bytes` from this rank to itself.
void exchange(const std::shared_ptr<Staging>& staging, Communicator& inner, std::size_t bytes) {
  std::vector<unsigned char> out(bytes), in(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(i * 31 + bytes + i / 4099);
  const Send send{out.data(), bytes, 0};
  const Receive receive{in.data(), bytes, 0};
  StagedState state(staging, staging->exchanges, inner, Queue(HostExec()));
  state.start({&send, 1}, {&receive, 1}, 0);
  state.wait();
  EXPECT_EQ(in, out) << bytes;
}

std::int64_t pinned() {
  return test::in_use(MemoryKind::host, MemoryCategory::communication);
}

// Masks of documents make messages of other sizes with every sequence.
TEST(StagedExchange, PinnedMemoryIsBoundedWhateverSizesMessagesHave) {
  constexpr std::size_t most = 2 * staged_chunk_bytes + staged_chunk_bytes / 2;
  const std::int64_t before = pinned();
  const auto staging = std::make_shared<Staging>();
  const auto inner = make_null();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, staged_chunk_bytes - 1, staged_chunk_bytes,
                                  staged_chunk_bytes + 1, most})
    exchange(staging, *inner, bytes);
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) exchange(staging, *inner, random() % most);
  for (std::size_t bytes = 1; bytes < most; bytes += bytes / 5 + 1) exchange(staging, *inner, bytes);
  // A message that is sent and one that comes have full chunks, and one buffer of each size of the rest.
  EXPECT_LE(pinned() - before, static_cast<std::int64_t>(2 * (2 + 2) * staged_chunk_bytes));
}

// What is reserved for a load suffices for messages of any sizes that make it up.
TEST(StagedExchange, MessagesUpToAReservedLoadTakeNoMoreMemory) {
  const auto inner = make_null();
  std::mt19937 random(2);
  for (int trial = 0; trial < 12; ++trial) {
    std::vector<std::size_t> sizes;
    for (int i = 0; i <= trial; ++i) {
      const std::size_t most = std::size_t{1} << (8 + random() % 16);
      sizes.push_back(trial % 3 == 0 ? most : random() % most);
    }
    std::size_t bytes = 0;
    for (const std::size_t size : sizes) bytes += size;
    const ExchangeLoad load{.messages = 2 * std::ssize(sizes), .bytes = 2 * bytes};  // sent, and received
    const std::int64_t before = pinned();
    const auto staging = std::make_shared<Staging>();
    staging->reserve(load);
    const std::int64_t reserved = pinned() - before;
    EXPECT_EQ(reserved, staging_memory(load));
    std::vector<unsigned char> data(2 * bytes + 1);
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (std::size_t at = 0; const std::size_t size : sizes) {
      sends.push_back({data.data() + at, size, 0});
      receives.push_back({data.data() + bytes + at, size, 0});
      at += size;
    }
    StagedState state(staging, staging->exchanges, *inner, Queue(HostExec()));
    state.start(sends, receives, 0);
    EXPECT_EQ(pinned() - before, reserved) << trial;
    state.wait();
  }
}

}  // namespace
}  // namespace annulus::comm
