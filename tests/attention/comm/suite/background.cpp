#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "attention/comm/agreement.hpp"
#include "attention/comm/background.hpp"
#include "attention/comm/suite/suite.hpp"

namespace annulus::comm::suite {

namespace {

/// What the thread of the background exchanges and what the rank's own thread does are told apart.
void beside_the_ranks_own_thread(Communicator& comm) {
  std::unique_ptr<Communicator> twin = comm.for_another_thread();
  ASSERT_NE(twin, nullptr);
  BackgroundCommunicator background(std::move(twin));
  ASSERT_EQ(background.size(), comm.size());
  ASSERT_EQ(background.rank(), comm.rank());
  EXPECT_EQ(background.watchdog(), nullptr);
  const int ranks = comm.size(), rank = comm.rank();
  const auto count = static_cast<std::size_t>(ranks);
  std::thread other([&] {
    for (int round = 0; round < 20; ++round) {
      EXPECT_EQ(background.all_reduce_value<std::int64_t>(rank + round, ReduceOp::sum),
                ranks * (ranks - 1) / 2 + ranks * round);
      EXPECT_EQ(background.all_reduce_value<std::int32_t>(rank - round, ReduceOp::max), ranks - 1 - round);
      EXPECT_EQ(background.all_reduce_value<std::int32_t>(rank - round, ReduceOp::min), -round);
      std::vector<std::int64_t> to_all(count), from_all(count);
      for (int r = 0; r < ranks; ++r) to_all[static_cast<std::size_t>(r)] = 1000 * rank + r + round;
      background.all_to_all(host_queue(), to_all.data(), from_all.data(), sizeof(std::int64_t));
      for (int r = 0; r < ranks; ++r)
        EXPECT_EQ(from_all[static_cast<std::size_t>(r)], 1000 * r + rank + round);
      background.barrier();
    }
  });
  for (int round = 0; round < 40; ++round)
    EXPECT_EQ(comm.all_reduce_value<std::int64_t>(7 * rank + round, ReduceOp::max), 7 * (ranks - 1) + round);
  other.join();
  EXPECT_THAT(error_text([&] { background.all_reduce_value(1.0, ReduceOp::sum); }),
              mentions("i32 or i64", "f64"));
}

/// The means of an agreement, all on ranks that wait.
void agreements(Communicator& comm) {
  BackgroundCommunicator background(comm.for_another_thread());
  Facts facts;
  facts.add("the number of documents", comm.rank() == comm.size() - 1 ? 8 : 7, "give them the same");
  const std::string differs = error_text([&] { require_agreement(background, facts); });
  const std::string told =
      error_text([&] { throw_together(background, comm.rank() == comm.size() - 1 ? "no more" : ""); });
  if (comm.size() > 1) {
    EXPECT_THAT(differs, mentions("the number of documents", std::to_string(comm.size() - 1)));
  }
  EXPECT_THAT(told, mentions("no more", "found on rank " + std::to_string(comm.size() - 1)));
  EXPECT_EQ(error_text([&] { throw_together(background, {}); }), "no error");
}

/// A wait for ranks that never come ends, and the ranks go on.
void waits_are_given_up(Communicator& comm) {
  {
    BackgroundCommunicator background(comm.for_another_thread());
    if (comm.rank() == 0 && comm.size() > 1) {
      std::string text;
      std::thread other([&] { text = error_text([&] { background.barrier(); }); });
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      background.give_up();
      other.join();
      EXPECT_THAT(text, mentions("given up"));
    }
    comm.barrier();
  }
  EXPECT_EQ(comm.all_reduce_value(1, ReduceOp::sum), comm.size());
}

}  // namespace

std::vector<Case> background_cases() {
  return {{"BesideTheRanksOwnThread", beside_the_ranks_own_thread},
          {"Agreements", agreements},
          {"WaitsAreGivenUp", waits_are_given_up}};
}

}  // namespace annulus::comm::suite
