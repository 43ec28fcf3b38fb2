// What messages are said to have taken.
#include "attention/comm/message_times.hpp"

#include <chrono>
#include <thread>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/throttled_wire.hpp"
#include "attention/comm/watchdog.hpp"

namespace annulus::comm {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

TEST(MessageTimes, KeepsTheFastestByPeerAndDirection) {
  MessageTimes times;
  times.add(3, true, mebibyte, 0.02);
  times.add(3, true, 4 * mebibyte, 0.04);
  times.add(3, true, mebibyte, 0.03);
  times.add(3, false, mebibyte, 0.5);
  times.add(5, true, MessageTimes::min_bytes - 1, 1e-9);  // too short to tell
  const std::vector<MessageTime> all = times.take();
  ASSERT_EQ(all.size(), 2);
  EXPECT_FALSE(all[0].receives);
  EXPECT_EQ(all[0].messages, 1);
  EXPECT_TRUE(all[1].receives);
  EXPECT_EQ(all[1].peer, 3);
  EXPECT_EQ(all[1].messages, 3);
  EXPECT_EQ(all[1].bytes, 4 * mebibyte);
  EXPECT_DOUBLE_EQ(all[1].rate(), 4 * mebibyte / 0.04);
  EXPECT_TRUE(times.take().empty());
}

/// What each of two ranks says of messages from rank 0 to rank 1 over a link of 50 MB/s, before each of which
/// rank `late` sleeps.
std::vector<std::vector<MessageTime>> times_of(int late, std::size_t bytes, int messages) {
  ThrottledWire wire([](int, int) { return 50e6; });
  std::vector<std::vector<MessageTime>> times(2);
  run_loopback(Topology::uniform(2, 2),
               [&](Communicator& comm) {
                 std::vector<char> data(bytes);
                 for (int i = 0; i < messages; ++i) {
                   comm.barrier();
                   if (comm.rank() == late) std::this_thread::sleep_for(milliseconds(500));
                   const Send send{data.data(), bytes, 1};
                   const Receive receive{data.data(), bytes, 0};
                   const bool sends = comm.rank() == 0;
                   comm.exchange(HostExec(), std::span(&send, sends ? 1 : 0),
                                 std::span(&receive, sends ? 0 : 1))
                       .wait();
                 }
                 comm.barrier();
                 times[static_cast<std::size_t>(comm.rank())] = comm.watchdog()->message_times().take();
               },
               {.wire = &wire});
  return times;
}

TEST(MessageTimes, OfLoopbackLeaveOutTheWaitForTheRankThatIsLate) {
  for (const int late : {0, 1}) {
    const auto times = times_of(late, mebibyte, 2);
    for (const int rank : {0, 1}) {
      const auto& mine = times[static_cast<std::size_t>(rank)];
      ASSERT_EQ(mine.size(), 1) << "barriers are collectives, of which nothing is said";
      EXPECT_EQ(mine[0].peer, 1 - rank);
      EXPECT_EQ(mine[0].receives, rank == 1);
      EXPECT_EQ(mine[0].messages, 2);
      EXPECT_EQ(mine[0].bytes, mebibyte);
      EXPECT_GE(mine[0].seconds, 0.999 * mebibyte / 50e6);
      EXPECT_LT(mine[0].seconds, 0.4) << "the other rank was 0.5 s late";
    }
  }
}

TEST(MessageTimes, OfShortMessagesAreNotKept) {
  for (const auto& mine : times_of(0, 100, 1)) EXPECT_TRUE(mine.empty());
}

TEST(MessageTimes, OfMessagesThatFollowOneAnotherCountTogether) {
  constexpr int messages = 4;
  ThrottledWire wire([](int, int) { return 10e6; });
  run_loopback(Topology::uniform(2, 1),
               [&](Communicator& comm) {
                 std::vector<char> data(mebibyte);
                 std::vector<Request> requests;
                 for (int i = 0; i < messages; ++i) {
                   const Send send{data.data(), mebibyte / (i + 1), 1};
                   const Receive receive{data.data(), mebibyte / (i + 1), 0};
                   const bool sends = comm.rank() == 0;
                   requests.push_back(comm.exchange(HostExec(), std::span(&send, sends ? 1 : 0),
                                                    std::span(&receive, sends ? 0 : 1)));
                 }
                 for (Request& request : requests) request.wait();
                 comm.barrier();  // a sender is done before its message is timed, at the receiver
                 for (const MessageTime& time : comm.watchdog()->message_times().take()) {
                   EXPECT_EQ(time.messages, messages);
                   EXPECT_GT(time.rate(), 4e6) << "the last ones have waited for those before";
                   EXPECT_LE(time.rate(), 10.02e6) << "the wire carries no more";
                 }
               },
               {.wire = &wire});
}

}  // namespace
}  // namespace annulus::comm
