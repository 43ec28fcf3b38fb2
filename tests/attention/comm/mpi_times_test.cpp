// What MPI says of the time of messages.

#include <chrono>
#include <thread>
#include <vector>

#include <annulus/attention/comm/mpi.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/watchdog.hpp"

namespace annulus::comm {
namespace {

TEST(MpiMessageTimes, ARankThatIsLateDoesNotCountTheWaitOfTheOther) {
  const MpiEnvironment environment;
  const auto comm = environment.world();
  if (comm->size() < 2) GTEST_SKIP() << "a message needs two ranks";
  constexpr std::size_t bytes = std::size_t{32} << 20;
  constexpr double lateness = 0.3;
  std::vector<char> data(bytes);
  for (int i = 0; i < 3; ++i) {
    comm->barrier();
    const Send send{data.data(), bytes, 1};
    const Receive receive{data.data(), bytes, 0};
    if (comm->rank() == 0) std::this_thread::sleep_for(std::chrono::duration<double>(lateness));
    comm->exchange(HostExec(), std::span(&send, comm->rank() == 0 ? 1 : 0),
                   std::span(&receive, comm->rank() == 1 ? 1 : 0))
        .wait();
  }
  const std::vector<MessageTime> times = comm->watchdog()->message_times().take();
  if (comm->rank() > 1) {
    EXPECT_TRUE(times.empty());
    return;
  }
  ASSERT_EQ(times.size(), 1);
  EXPECT_EQ(times[0].peer, 1 - comm->rank());
  EXPECT_EQ(times[0].receives, comm->rank() == 1);
  EXPECT_EQ(times[0].bytes, bytes);
  EXPECT_GT(times[0].seconds, 0);
  if (comm->rank() == 0)
    EXPECT_LT(times[0].seconds, lateness);
  else
    EXPECT_GT(times[0].seconds, 0.9 * lateness) << "it cannot know since when the other rank was there";
}

}  // namespace
}  // namespace annulus::comm
