// What loopback alone promises: failures, deadlocks, time limits, fences.
#include <annulus/attention/comm/loopback.hpp>

#include <gmock/gmock.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include <annulus/attention/comm/communicator.hpp>

#include "attention/comm/suite/suite.hpp"

#ifdef KOKKOS_ENABLE_OPENMP
#include <omp.h>
#endif

namespace annulus::comm {
namespace {

using suite::host_queue;
using test::error_text;
using testing::HasSubstr;

/// What each rank's body ends with.
struct Ends {
  explicit Ends(int ranks) : text(static_cast<std::size_t>(ranks)) {}
  std::vector<std::string> text;
  template <class Body>
  void record(const Communicator& comm, const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      text[static_cast<std::size_t>(comm.rank())] = error.what();
      throw;
    }
  }
};

TEST(Loopback, FirstExceptionIsThrownAgainAndWakesTheOthers) {
  Ends ends(4);
  EXPECT_THROW(run_loopback(Topology::uniform(4, 4),
                            [&](Communicator& comm) {
                              ends.record(comm, [&] {
                                if (comm.rank() == 2) throw std::out_of_range("a shard is missing");
                                if (comm.rank() == 3) comm.barrier();
                                char byte = 0;
                                suite::receive_one(comm, {&byte, 1, 2}, 1).wait();
                              });
                            }),
               std::out_of_range);
  for (const std::size_t rank : {0, 1, 3}) EXPECT_EQ(ends.text[rank], "rank 2 failed: a shard is missing");
}

TEST(Loopback, ExceptionsOfOtherTypesToo) {
  EXPECT_THROW(run_loopback(Topology::uniform(2, 2),
                            [](Communicator& comm) {
                              if (comm.rank() == 0) throw 7;
                              comm.barrier();
                            }),
               int);
}

/// A rank that polls hears of the failure as well, and so does one that only posts.
TEST(Loopback, FailureReachesTestAndExchange) {
  std::atomic<bool> failed = false;
  const std::string text = suite::error_of_ranks(3, [&](Communicator& comm) {
    char byte = 0;
    if (comm.rank() == 0) {
      failed = true;
      fail("no space left");
    }
    while (!failed) std::this_thread::yield();
    if (comm.rank() == 1) {
      Request request = suite::receive_one(comm, {&byte, 1, 0});
      while (!request.test()) std::this_thread::yield();
      ADD_FAILURE() << "a message that nobody sent";
    } else {
      for (;;) suite::send_one(comm, {nullptr, 0, 2}).test();
    }
  });
  EXPECT_EQ(text, "no space left");
}

TEST(Loopback, AbortFailsAllRanks) {
  const std::string text = suite::error_of_ranks(2, [](Communicator& comm) {
    if (comm.rank() == 1) comm.abort("the loss is NaN at step 3");
    comm.barrier();
  });
  EXPECT_EQ(text, "rank 1: the loss is NaN at step 3");
}

TEST(Loopback, DeadlockIsAnErrorAtOnce) {
  const std::string text = suite::error_of_ranks(3, [](Communicator& comm) {
    if (comm.rank() == 2) return;
    char bytes[6];
    suite::receive_one(comm, {bytes, 6, (comm.rank() + 1) % 3}, comm.rank() + 4).wait();
  });
  EXPECT_THAT(text,
              suite::mentions("deadlock", "rank 0 waits for 6 bytes from rank 1 on channel 4",
                              "rank 1 waits for 6 bytes from rank 2 on channel 5", "rank 2 has returned"));
}

TEST(Loopback, SendsCompleteWhenTheyAreReceived) {
  const std::string text = suite::error_of_ranks(2, [](Communicator& comm) {
    char byte = 0;
    suite::send_one(comm, {&byte, 1, 1 - comm.rank()}).wait();
    suite::receive_one(comm, {&byte, 1, 1 - comm.rank()}).wait();
  });
  EXPECT_THAT(text, HasSubstr("rank 0 sends 1 bytes to rank 1 on channel 0"));
}

TEST(Loopback, WaitingHasALimit) {
  const std::string text = error_text([] {
    std::atomic<bool> given_up = false;
    run_loopback(Topology::uniform(2, 2),
                 [&](Communicator& comm) {
                   if (comm.rank() == 1) {
                     while (!given_up)
                       std::this_thread::yield();  // busy, not waiting: no deadlock that could be seen
                     return;
                   }
                   char bytes[3];
                   Request request = suite::receive_one(comm, {bytes, 3, 1}, 6);
                   const struct SayWhenGone {
                     std::atomic<bool>& gone;
                     ~SayWhenGone() { gone = true; }
                   } say{given_up};
                   request.wait();
                 },
                 {.stall_timeout = std::chrono::milliseconds(100)});
  });
  EXPECT_EQ(text,
            "rank 0 has waited 100 ms for 3 bytes from rank 1 on channel 6: the other side was never posted");
}

/// Where a rank communicates from several threads, all ranks waiting is no deadlock yet.
TEST(Loopback, AnotherThreadMayBringTheMessage) {
  run_loopback(Topology::uniform(2, 2), [](Communicator& comm) {
    std::vector<std::int64_t> in(10);
    const auto out = suite::pattern(10, comm.rank(), 0);
    const int peer = 1 - comm.rank();
    std::atomic<bool> known = false;
    std::jthread sender([&] {
      suite::exchange_one(comm, {nullptr, 0, comm.rank()}, {nullptr, 0, comm.rank()}, 2).wait();
      known = true;  // the world has seen this thread
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      suite::send_one(comm, suite::send_of(out, peer), 3).wait();
    });
    while (!known) std::this_thread::yield();
    suite::receive_one(comm, suite::receive_of(in, peer), 3).wait();
    EXPECT_EQ(in, suite::pattern(10, peer, 0));
  });
}

TEST(Null, WaitingForNobodyIsAnError) {
  const auto comm = make_null();
  char byte = 0;
  EXPECT_THAT(error_text([&] {
                suite::receive_one(*comm, {&byte, 1, 0}, 2).wait();
              }),
              HasSubstr("rank 0 waits for 1 bytes from rank 0 on channel 2"));
  suite::exchange_one(*comm, {&byte, 1, 0}, {&byte, 1, 0}).wait();  // it can go on
}

TEST(Null, AbortThrows) {
  EXPECT_EQ(error_text([] { make_null()->abort("disk full"); }), "rank 0: disk full");
}

/// Work on the queue ends before its memory is touched.
TEST(Null, CommunicationFencesTheQueue) {
  static std::vector<std::string> fences;
  fences.clear();
  const auto comm = make_null();
  float value = 1;
  Kokkos::Tools::Experimental::set_begin_fence_callback(
      [](const char* name, std::uint32_t, std::uint64_t* id) {
        *id = 0;
        fences.emplace_back(name);
      });
  suite::exchange_one(*comm, {&value, 4, 0}, {&value, 4, 0}).wait();
  comm->all_reduce(host_queue(), &value, 1, DType::f32, ReduceOp::sum);
  comm->all_gather(host_queue(), &value, &value, 4);
  Kokkos::Tools::Experimental::set_begin_fence_callback(nullptr);
  EXPECT_THAT(fences, testing::IsSupersetOf({HasSubstr("annulus::comm::exchange"),
                                             HasSubstr("annulus::comm::all_reduce"),
                                             HasSubstr("annulus::comm::all_gather")}));
}

#ifdef KOKKOS_ENABLE_OPENMP
/// OMP_DYNAMIC=true, which ctest sets for these tests, counts for each new thread: BLAS would wait for ever
/// for threads that OpenMP does not grant.
TEST(Loopback, RanksGetTheThreadsThatTheyAskFor) {
  run_loopback(Topology::uniform(2, 2), [&](Communicator&) { EXPECT_EQ(omp_get_dynamic(), 0); });
}
#endif

}  // namespace
}  // namespace annulus::comm
