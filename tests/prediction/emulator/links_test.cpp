// Emulated links: when messages arrive, and that nothing but time changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/executor/attention_case.hpp"
#include "prediction/emulator/emulate.hpp"
#include "prediction/emulator/links.hpp"

namespace annulus::emulator {
namespace {

using plan::Pass;
using Way = simulator::SideFlow::Way;
using Clock = std::chrono::steady_clock;

/// 1 MB/s inside a node, 100 kB/s between nodes; without latency unless it is set.
simulator::Cluster slow_cluster() {
  simulator::Cluster cluster = simulator::default_cluster();
  cluster.intra_node = {.bandwidth = 1e6, .latency = 0};
  cluster.inter_node = {.bandwidth = 1e5, .latency = 0};
  return cluster;
}

/// Seconds from the start at which the sides of messages completed, in the order of sending.
struct Completions {
  std::vector<double> left, arrived;
  double traffic_ended = 0;  ///< from its own begin
};

/// Messages handed to links, with the times at which their sides completed.
class MessagePost {
 public:
  MessagePost(const simulator::Cluster& cluster, const Topology& topology) : links_(cluster, topology) {}

  void send(int from, int to, std::size_t bytes, int channel = 0) {
    const std::size_t i = sent_++;
    const std::lock_guard lock(mutex_);
    times_.left.push_back(-1);
    times_.arrived.push_back(-1);
    links_.carry(
        {from, to, 0, channel, bytes}, [this, i] { note(times_.left, i); },
        [this, i] { note(times_.arrived, i); });
  }
  void begin_traffic(simulator::SideTraffic traffic) {
    links_.begin_traffic(std::move(traffic), Clock::now());
  }
  Completions wait() {
    const double traffic_ended = links_.wait_for_traffic();
    std::unique_lock lock(mutex_);
    times_.traffic_ended = traffic_ended;
    changed_.wait(lock,
                  [this] { return std::ranges::all_of(times_.arrived, [](double t) { return t >= 0; }); });
    return times_;
  }

 private:
  void note(std::vector<double>& times, std::size_t i) {
    const double time = std::chrono::duration<double>(Clock::now() - start_).count();
    const std::lock_guard lock(mutex_);
    times[i] = time;
    changed_.notify_one();
  }

  Clock::time_point start_ = Clock::now();
  std::size_t sent_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  Completions times_;
  EmulatedLinks links_;  // last: its thread calls note
};

/// The earliest that each side of a message completed in five tries: a busy machine wakes threads late. A try
/// in which it stopped this thread between two messages does not count, since the first then had the links
/// for itself.
Completions earliest(const simulator::Cluster& cluster, const Topology& topology,
                     const std::function<void(MessagePost&)>& send) {
  Completions best;
  for (int counted = 0, tries = 0; counted < 5 && tries < 50; ++tries) {
    MessagePost post(cluster, topology);
    const Clock::time_point begin = Clock::now();
    send(post);
    const bool at_once = Clock::now() - begin < std::chrono::milliseconds(1);
    const Completions times = post.wait();
    if (!at_once) continue;
    if (counted++ == 0) best = times;
    std::ranges::transform(best.left, times.left, best.left.begin(), std::ranges::min);
    std::ranges::transform(best.arrived, times.arrived, best.arrived.begin(), std::ranges::min);
    best.traffic_ended = std::min(best.traffic_ended, times.traffic_ended);
  }
  return best;
}

/// Not early by more than what posting took, and not late in every try.
void expect_times(const std::vector<double>& times, const std::vector<double>& expected) {
  ASSERT_EQ(times.size(), expected.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_GE(times[i], expected[i] - 0.003) << i;
    EXPECT_LE(times[i], expected[i] + 0.025) << i;
  }
}

TEST(EmulateLinks, BandwidthAndLatency) {
  simulator::Cluster cluster = slow_cluster();
  cluster.inter_node.latency = 0.04;
  const Completions times = earliest(cluster, Topology::uniform(4, 2), [](MessagePost& post) {
    post.send(0, 1, 20000);
    post.send(1, 3, 4000);
  });
  expect_times(times.left, {0.02, 0.04});
  expect_times(times.arrived, {0.02, 0.08});
}

TEST(EmulateLinks, MessagesOfAStreamFollowOneAnotherAndThoseOfOthersShare) {
  const Completions times = earliest(slow_cluster(), Topology::uniform(3, 3), [](MessagePost& post) {
    post.send(0, 1, 30000);
    post.send(0, 1, 30000);     // follows the first one
    post.send(0, 1, 30000, 1);  // another channel: shares rank 0's way out with the first two
    post.send(0, 2, 30000);     // and so does another receiver
  });
  expect_times(times.arrived, {0.09, 0.12, 0.09, 0.09});
}

TEST(EmulateLinks, RanksShareTheirRails) {
  simulator::Cluster cluster = slow_cluster();
  cluster.nics_per_node = 1;
  const Completions times = earliest(cluster, Topology::uniform(4, 2), [](MessagePost& post) {
    post.send(0, 2, 3000);
    post.send(1, 3, 3000);
    post.send(2, 0, 3000);  // the other direction
  });
  expect_times(times.arrived, {0.06, 0.06, 0.03});
}

TEST(EmulateLinks, SideTrafficSharesLinksWithMessages) {
  const simulator::SideTraffic traffic{
      {{{Way::intra_node, 30000, 1e6}, {Way::intra_node, 10000, 1e6}}, {{Way::to_host, 1000, 1e5}}}};
  const Completions times = earliest(slow_cluster(), Topology::uniform(2, 2), [&](MessagePost& post) {
    post.begin_traffic(traffic);
    post.send(0, 1, 30000);
  });
  expect_times(times.left, {0.06});
  expect_times({times.traffic_ended}, {0.07});
}

TEST(EmulateLinks, CopiesShareTheWayToTheNic) {
  simulator::Cluster cluster = slow_cluster();
  cluster.memory.host_copy = 1e5;
  const Completions times = earliest(cluster, Topology::uniform(2, 1), [](MessagePost& post) {
    post.begin_traffic({{{{Way::to_host, 3000, 1e5}}}});
    post.send(0, 1, 3000);  // out of rank 0, as the copy
  });
  expect_times(times.left, {0.06});
  expect_times({times.traffic_ended}, {0.06});
}

TEST(EmulateLinks, SideTrafficWaitsForItsBegin) {
  EmulatedLinks links(slow_cluster(), Topology::uniform(2, 2));
  EXPECT_EQ(links.wait_for_traffic(), 0);
  for (int i = 0; i < 2; ++i) {  // one after the other
    // So late that a busy machine comes to the next line before.
    const Clock::time_point begin = Clock::now() + std::chrono::milliseconds(300);
    links.begin_traffic({{{{Way::intra_node, 10000, 1e6}}}}, begin);
    EXPECT_THROW(links.begin_traffic({{{{Way::intra_node, 1, 1e6}}}}, begin), Error);
    EXPECT_GE(links.wait_for_traffic(), 0.01 - 1e-6);
    EXPECT_GE(std::chrono::duration<double>(Clock::now() - begin).count(), 0.01 - 1e-6);
  }
}

TEST(EmulateLinks, MessagesUnderWayEndWithTheLinks) {
  bool arrived = false;
  {
    EmulatedLinks links(slow_cluster(), Topology::uniform(2, 2));
    links.carry(
        {0, 1, 0, 0, 1000000000}, [] {}, [&] { arrived = true; });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(arrived);
}

TEST(EmulateLinks, OnlyTimesChange) {
  const auto sample = test::make_sample("causal", {.tokens = 61});
  simulator::Cluster cluster = simulator::default_cluster();
  cluster.intra_node = {.bandwidth = 2e7, .latency = 1e-4};
  cluster.inter_node = {.bandwidth = 5e6, .latency = 5e-4};
  for (const std::string schedule : {"ring", "topology-burst", "all-gather", "ulysses"}) {
    const Topology topology = Topology::uniform(4, 2);
    EmulatedLinks links(cluster, topology);
    comm::run_loopback(topology,
                       [&](comm::Communicator& communicator) {
                         test::expect_correct(
                             test::run(communicator, *sample, schedule, Layout::parse("zigzag")), schedule);
                       },
                       {.wire = &links});
  }
}

/// Full attention of four ranks of one node: a pair of shards takes 30 ms, and so do its K and V.
plan::Problem even_problem() {
  return {.topology = Topology::uniform(4, 4),
          .layout = Layout::parse("contiguous"),
          .mask = Mask::parse("full", 4 * 32),
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 16};
}
simulator::Cluster even_cluster() {
  simulator::Cluster cluster = simulator::default_cluster();
  const plan::Problem problem = even_problem();
  cluster.intra_node = {.bandwidth = 2 * 32 * 2 * 16 * sizeof(float) / 0.03, .latency = 0};
  for (simulator::KernelRate& kernel : cluster.kernels) {
    kernel.rate = simulator::flops(problem, Pass::forward, 32 * 32 * 2) / 0.03;
  }
  return cluster;
}

// Four computes, and three transfers that they hide or that come on top.
TEST(EmulateRun, WithoutOverlapTransfersAreExposed) {
  const plan::Problem problem = even_problem();
  const simulator::Cluster cluster = even_cluster();
  const plan::Plan forward = plan::make_ring(problem, Pass::forward),
                   backward = plan::make_ring(problem, Pass::backward);
  EXPECT_NEAR(simulator::simulate(forward, cluster).time, 0.12, 1e-9);
  EmulationOptions options;
  options.settings.synthetic_kernel = sleeping_kernel(cluster, problem);
  options.repetitions = 5;
  const std::vector<Passes> with = run(forward, backward, cluster, options);
  options.settings.overlap = false;
  const std::vector<Passes> without = run(forward, backward, cluster, options);
  // A busy machine may be late in one repetition, but not in five.
  double fastest = 1e9, most_waiting = 0;
  for (const Passes& passes : with) {
    EXPECT_GE(passes.forward.time, 0.12);
    fastest = std::min(fastest, passes.forward.time);
  }
  EXPECT_LT(fastest, 0.16);
  for (const Passes& passes : without) {
    EXPECT_GE(passes.forward.time, 0.21);
    // A rank that begins to wait late waits less than its transfers take.
    most_waiting = std::max(most_waiting, std::ranges::min(passes.forward.exposed_communication));
  }
  EXPECT_GE(most_waiting, 0.045) << "half of what its transfers take";
}

// Three transfers and the traffic share a port: alone a pass takes 0.12 s.
TEST(EmulateRun, SideTrafficTakesItsShare) {
  const plan::Problem problem = even_problem();
  const simulator::Cluster cluster = even_cluster();
  const plan::Plan forward = plan::make_ring(problem, Pass::forward),
                   backward = plan::make_ring(problem, Pass::backward);
  const double rate = cluster.intra_node.bandwidth;
  EmulationOptions options;
  options.settings.synthetic_kernel = sleeping_kernel(cluster, problem);
  options.beside_forward.flows = {
      {{{Way::intra_node, 0.05 * rate, rate}, {Way::intra_node, 0.07 * rate, rate}}}};
  options.repetitions = 5;
  const simulator::PlanBeside predicted =
      simulator::simulate_beside(forward, cluster, {}, options.beside_forward.flows);
  EXPECT_NEAR(predicted.simulation.time, 0.21, 1e-9);
  EXPECT_NEAR(predicted.traffic_ended, 0.21, 1e-9);
  Measured best;
  best.time = 1e9;
  for (const Passes& passes : run(forward, backward, cluster, options)) {
    const auto& [time, exposed, beside_ended] = passes.forward;
    EXPECT_GE(time, 0.12 - 1e-6);
    // All bytes of a port; a pass ends a compute after its last transfer.
    EXPECT_GE(std::max(beside_ended, time - 0.03), 0.21 - 1e-6);
    EXPECT_EQ(passes.backward.beside_ended, 0);
    if (time < best.time) best = passes.forward;
  }
  EXPECT_NEAR(best.time / 0.21, 1, 0.15);
  EXPECT_NEAR(best.beside_ended / 0.21, 1, 0.15);
}

TEST(EmulateRun, RealKernelsOnSlowLinks) {
  plan::Problem problem = even_problem();
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    problem.dtype = type;
    const plan::Plan forward = plan::make_burst(problem, Pass::forward),
                     backward = plan::make_burst(problem, Pass::backward);
    const Passes passes = run(forward, backward, even_cluster()).front();
    // Three hops of K and V, whatever the kernels take.
    EXPECT_GE(passes.forward.time, 3 * 0.03 * static_cast<double>(size_of(type)) / 4);
    EXPECT_GT(passes.backward.time, 0);
  }
}

TEST(EmulateRun, SlowMotion) {
  const plan::Plan plan = plan::make_ring(even_problem(), Pass::forward);
  const simulator::Cluster cluster = even_cluster();
  EXPECT_NEAR(simulator::simulate(plan, slowed(cluster, 7)).time, 7 * simulator::simulate(plan, cluster).time,
              1e-9);
  EXPECT_THROW(slowed(cluster, 0), Error);
}

}  // namespace
}  // namespace annulus::emulator
