// What gathers and sums put on the links, worked out by hand and held against the collectives themselves,
// which run on emulated links beside attention.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "prediction/emulator/emulate.hpp"
#include "prediction/step/layer_traffic.hpp"

namespace annulus::prediction {
namespace {

using plan::Pass;
using simulator::Cluster;
using simulator::SideQueue;
using Way = simulator::SideFlow::Way;

/// 1000 bytes/s inside a node, 100 between nodes, without latency.
Cluster round_cluster() {
  Cluster cluster = simulator::default_cluster();
  cluster.intra_node = {.bandwidth = 1000, .latency = 0};
  cluster.inter_node = {.bandwidth = 100, .latency = 0};
  return cluster;
}

void expect_queue(const SideQueue& queue, const SideQueue& expected) {
  ASSERT_EQ(queue.size(), expected.size());
  for (std::size_t i = 0; i < queue.size(); ++i) {
    EXPECT_EQ(queue[i].way, expected[i].way) << i;
    EXPECT_NEAR(queue[i].bytes, expected[i].bytes, 1e-9) << i;
    EXPECT_NEAR(queue[i].rate, expected[i].rate, 1e-9) << i;
    EXPECT_EQ(queue[i].messages, expected[i].messages) << i;
  }
}

// Twelve ranks with 10 bytes each. Between the nodes a rank gathers those of its two partners; inside, those
// that its three neighbours have by then. A sum goes the other way.
TEST(Collectives, GoInTwoStages) {
  Cluster cluster = round_cluster();
  const Topology ranks = Topology::uniform(12, 4);
  const Collectives collectives(ranks, cluster);
  expect_queue(collectives.gather(120), {{Way::inter_node, 20, 100, 2}, {Way::intra_node, 90, 1000, 3}});
  expect_queue(collectives.sum(120), {{Way::intra_node, 90, 1000, 3}, {Way::inter_node, 20, 100, 2}});
  expect_queue(Collectives(ranks, cluster, comm::Sums::native).sum(120), collectives.sum(120));
  expect_queue(collectives.gather(0), {});
  expect_queue(collectives.sum(0), {});
  cluster.nics_per_node = 2;
  cluster.intra_node.latency = 0.01;
  expect_queue(collectives.gather(120), {{Way::inter_node, 20, 50, 2}, {Way::intra_node, 100, 1000, 3}});
}

TEST(Collectives, GoInOneStageWhereThereAreNoTwo) {
  const Cluster cluster = round_cluster();
  expect_queue(Collectives(Topology::uniform(4, 4), cluster).sum(40), {{Way::intra_node, 30, 1000, 3}});
  expect_queue(Collectives(Topology::uniform(4, 1), cluster).sum(40), {{Way::inter_node, 30, 100, 3}});
  // The rank that is alone on its node has the most from others.
  expect_queue(Collectives(Topology({3, 1}), cluster).gather(40), {{Way::inter_node, 30, 100, 3}});
  expect_queue(Collectives(Topology::uniform(1, 1), cluster).gather(40), {});
  // Nodes of three ranks add nothing up on the way, in rank order.
  const Topology of_three = Topology::uniform(6, 3);
  expect_queue(Collectives(of_three, cluster).sum(60),
               {{Way::intra_node, 20, 1000, 2}, {Way::inter_node, 30, 100, 3}});
  expect_queue(Collectives(of_three, cluster, comm::Sums::native).sum(60),
               {{Way::intra_node, 40, 1000, 2}, {Way::inter_node, 10, 100, 1}});
}

constexpr double tolerance = 0.15;

/// Passes of a schedule on two emulated nodes beside the collectives of a layer, and as predicted.
class LayerOnTwoNodes {
 public:
  LayerOnTwoNodes(int ranks, const std::string& schedule) : ranks_(ranks) {
    plan::Problem problem;
    problem.topology = Topology::uniform(ranks, ranks / 2);
    problem.layout = Layout::parse("zigzag");
    problem.mask = Mask::parse("causal", 32 * ranks);
    problem.heads = problem.kv_heads = 4;
    problem.head_dim = 16;
    // Full attention of two shards takes 60 ms, and so do K and V of one between nodes; 30 ms inside.
    constexpr double pair_flops = 32.0 * 32 * 4 * 4 * 16, shard_bytes = 2.0 * 32 * 4 * 16 * sizeof(float);
    cluster_.intra_node = {.bandwidth = shard_bytes / 0.03, .latency = 1e-3};
    cluster_.inter_node = {.bandwidth = shard_bytes / 0.06, .latency = 2e-3};
    cluster_.kernels = {{.pass = Pass::forward, .head_dim = 16, .rate = pair_flops / 0.06},
                        {.pass = Pass::backward, .head_dim = 16, .rate = pair_flops / 0.06}};
    forward_ = plan::make_plan(schedule, problem, Pass::forward);
    backward_ = plan::make_plan(schedule, problem, Pass::backward);
  }

  /// `part`: bytes of each rank that are gathered, and of floats that are summed.
  void expect_as_predicted(std::int64_t part) {
    const Collectives collectives(forward_.problem.topology, cluster_);
    const LayerBytes bytes{.gathered = double(part) * ranks_, .summed = double(part) * ranks_};
    const SideQueue of_forward = forward_traffic(bytes, collectives, cluster_).sharding,
                    of_backward = backward_traffic(bytes, collectives, cluster_).sharding;
    emulator::EmulationOptions options;
    options.settings.synthetic_kernel = emulator::sleeping_kernel(cluster_, forward_.problem);
    options.beside_forward.gathered_bytes = options.beside_backward.gathered_bytes = part;
    options.beside_backward.summed_floats = part / std::int64_t{sizeof(float)};
    Comparison forward(forward_, cluster_, of_forward), backward(backward_, cluster_, of_backward);
    // Other processes make a run slower and never faster: of some the fastest counts. One that is near enough
    // is not repeated.
    for (int attempt = 0; attempt < 6 && std::max(forward.error(), backward.error()) > tolerance / 3;
         ++attempt) {
      const emulator::Passes passes = emulator::run(forward_, backward_, cluster_, options).front();
      forward.add(passes.forward);
      backward.add(passes.backward);
    }
    for (const Comparison* pass : {&forward, &backward}) EXPECT_LE(pass->error(), tolerance) << pass->text();
    // What is compared is contention, not two passes that nothing disturbs.
    EXPECT_GE(std::max(forward.slowdown(), backward.slowdown()), 1.3) << forward.text() << backward.text();
  }

 private:
  /// The fastest run of a pass against its prediction.
  class Comparison {
   public:
    Comparison(const plan::Plan& plan, const Cluster& cluster, const SideQueue& queue)
        : name_(plan.schedule + " " + std::string(plan::name_of(plan.pass))),
          alone_(simulator::simulate(plan, cluster).time),
          queue_alone_(simulator::seconds_alone(queue)),
          predicted_(simulator::simulate_beside(plan, cluster, {}, {{queue}})) {
      best_.time = 1e9;
    }
    void add(const emulator::Measured& measured) {
      EXPECT_GE(measured.time, alone_ - 1e-6) << name_;
      EXPECT_GE(measured.beside_ended, queue_alone_ - 1e-6) << name_;
      if (measured.time < best_.time) best_ = measured;
    }
    double error() const {
      return std::max(std::abs(best_.time / predicted_.simulation.time - 1),
                      std::abs(best_.beside_ended / predicted_.traffic_ended - 1));
    }
    double slowdown() const { return best_.time / alone_; }
    std::string text() const {
      return fmt::format("{}: {} s of {} s, alone {} s; beside {} s of {} s", name_, best_.time,
                         predicted_.simulation.time, alone_, best_.beside_ended, predicted_.traffic_ended);
    }

   private:
    std::string name_;
    double alone_, queue_alone_;
    simulator::PlanBeside predicted_;
    emulator::Measured best_;
  };

  int ranks_;
  Cluster cluster_;
  plan::Plan forward_, backward_;
};

// Both numbers of ranks side by side, since both sleep most of the time.
TEST(Collectives, TakeTheirShareOfEmulatedLinks) {
  std::thread four([] { LayerOnTwoNodes(4, "ring").expect_as_predicted(100'000); });
  LayerOnTwoNodes(8, "double-ring").expect_as_predicted(60'000);
  four.join();
}

}  // namespace
}  // namespace annulus::prediction
