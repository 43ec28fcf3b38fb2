// Loopback over a wire that decides when messages arrive.
#include <annulus/attention/comm/loopback.hpp>

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "attention/comm/suite/suite.hpp"
#include "attention/comm/throttled_wire.hpp"

namespace annulus::comm {
namespace {

/// Keeps what it is to carry; the test says when something happens.
class HandWire final : public Wire {
 public:
  void carry(const Message& message, std::function<void()> left, std::function<void()> arrived) override {
    messages.push_back(message);
    lefts.push_back(std::move(left));
    arriveds.push_back(std::move(arrived));
    ++carried;
  }
  void await(int messages_carried) const {
    while (carried < messages_carried) std::this_thread::yield();
  }

  std::vector<Message> messages;
  std::vector<std::function<void()>> lefts, arriveds;
  std::atomic<int> carried = 0;
};

class WireSuite : public testing::TestWithParam<suite::Case> {};

TEST_P(WireSuite, Holds) {
  ThrottledWire wire;
  run_loopback(Topology::uniform(4, 2), [run = GetParam().run](Communicator& comm) { run(comm); },
               {.wire = &wire});
}

INSTANTIATE_TEST_SUITE_P(Comm, WireSuite, testing::ValuesIn(suite::all_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Wire, SidesCompleteWhenItSaysSo) {
  HandWire wire;
  std::atomic<bool> sent = false;
  run_loopback(Topology::uniform(2, 1),
               [&](Communicator& comm) {
                 std::vector<std::int64_t> data = suite::pattern(3, comm.rank(), 0);
                 if (comm.rank() == 0) {
                   suite::send_one(comm, suite::send_of(data, 1), 5).wait();
                   sent = true;
                   return;
                 }
                 Request request = suite::receive_one(comm, suite::receive_of(data, 0), 5);
                 wire.await(1);
                 EXPECT_FALSE(request.test());
                 EXPECT_FALSE(sent);
                 wire.lefts.at(0)();
                 while (!sent) std::this_thread::yield();
                 EXPECT_FALSE(request.test());
                 wire.arriveds.at(0)();
                 EXPECT_TRUE(request.test());
                 EXPECT_EQ(data, suite::pattern(3, 0, 0));
               },
               {.wire = &wire});
  EXPECT_EQ(wire.messages.at(0).from, 0);
  EXPECT_EQ(wire.messages.at(0).to, 1);
  EXPECT_EQ(wire.messages.at(0).channel, 5);
  EXPECT_EQ(wire.messages.at(0).bytes, 3 * sizeof(std::int64_t));
}

TEST(Wire, AMessageOnItsWayIsNoDeadlock) {
  ThrottledWire wire([](int, int) { return 1 / 0.03; });  // bytes/s
  std::atomic<int> received = 0;
  const std::string text =
      suite::error_of_ranks(2,
                            [&](Communicator& comm) {
                              char byte = 0;
                              const int peer = 1 - comm.rank();
                              suite::exchange_one(comm, {&byte, 1, peer}, {&byte, 1, peer}).wait();
                              ++received;
                              suite::receive_one(comm, {&byte, 1, peer}, 4).wait();  // nobody sends it
                            },
                            {.wire = &wire});
  EXPECT_EQ(received, 2);
  EXPECT_THAT(text, suite::mentions("deadlock", "rank 0 waits for 1 bytes from rank 1 on channel 4"));
}

TEST(Wire, AMessageMayArriveWhenNobodyIsLeft) {
  HandWire wire;
  const std::string text = suite::error_of_ranks(2,
                                                 [&](Communicator& comm) {
                                                   std::vector<std::int64_t> data(3);
                                                   if (comm.rank() == 0) {
                                                     suite::send_one(comm, suite::send_of(data, 1)).wait();
                                                   } else {
                                                     const Request request =
                                                         suite::receive_one(comm, suite::receive_of(data, 0));
                                                     wire.await(1);
                                                     fail("no space left");
                                                   }
                                                 },
                                                 {.wire = &wire});
  EXPECT_EQ(text, "no space left");
  wire.lefts.at(0)();
  wire.arriveds.at(0)();
}

TEST(Wire, AnExchangeThatIsGivenUpNeedsNoArrival) {
  HandWire wire;
  run_loopback(Topology::uniform(2, 2),
               [&](Communicator& comm) {
                 std::vector<std::int64_t> data(3);
                 if (comm.rank() == 0) {
                   suite::send_one(comm, suite::send_of(data, 1)).wait();
                   return;
                 }
                 try {
                   const Request request = suite::receive_one(comm, suite::receive_of(data, 0));
                   wire.await(1);
                   fail("interrupted");
                 } catch (const Error&) {
                 }
                 wire.lefts.at(0)();
                 wire.arriveds.at(0)();
               },
               {.wire = &wire});
}

TEST(Wire, WaitingHasALimit) {
  HandWire wire;
  const std::string text =
      suite::error_of_ranks(2,
                            [](Communicator& comm) {
                              char byte = 0;
                              const int peer = 1 - comm.rank();
                              suite::exchange_one(comm, {&byte, 1, peer}, {&byte, 1, peer}, 2).wait();
                            },
                            {.stall_timeout = std::chrono::milliseconds(50), .wire = &wire});
  EXPECT_THAT(text, suite::mentions("has waited 50 ms for 1 bytes from rank", "emulated link"));
}

}  // namespace
}  // namespace annulus::comm
