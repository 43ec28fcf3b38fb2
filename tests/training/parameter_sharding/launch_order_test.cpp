// Operations of sharding and of attention, which have communicators of their own, are launched in one order
// on all ranks (docs/gpu.md): carried out strictly in this order, one at a time, they come to the same end.
#include <gtest/gtest.h>

#include <annulus/attention/comm/loopback.hpp>

#include "support/one_at_a_time.hpp"
#include "training/parameter_sharding/tiny_model.hpp"

namespace annulus::parameter_sharding {
namespace {

using test::OneAtATime;
using test::TestExec;

/// Rank 0's shard of the weights after the updates of `run`.
std::vector<float> masters(const Topology& topology, Stage stage, const tiny::Setting& run,
                           bool one_at_a_time) {
  std::vector<float> found;
  comm::run_loopback(topology, [&](comm::Communicator& loopback) {
    const TestExec exec = test::rank_instance();
    const auto group = loopback.split(0, loopback.rank());
    OneAtATime::Order order;
    OneAtATime ordered(loopback, order), ordered_group(*group, order);
    comm::Communicator& world = one_at_a_time ? static_cast<comm::Communicator&>(ordered) : loopback;
    comm::Communicator& context = one_at_a_time ? static_cast<comm::Communicator&>(ordered_group) : *group;
    std::vector<float> mine = tiny::masters<float>(world, context, exec, stage, run);
    order.finish_all();
    if (world.rank() == 0) found = std::move(mine);
  });
  return found;
}

TEST(LaunchOrder, OneOperationAtATimeEndsUnderEveryScheduleAndStage) {
  for (const Topology& topology : {Topology::uniform(4, 2), Topology::uniform(4, 4)}) {
    int number = 0;
    for (const std::string schedule :
         {"ring", "burst", "topology-burst", "double-ring", "hierarchical", "all-gather", "ulysses"}) {
      for (const Stage stage : {Stage::optimizer, Stage::gradients, Stage::parameters}) {
        SCOPED_TRACE(schedule + ", stage " + std::to_string(static_cast<int>(stage)));
        tiny::Setting run{.schedule = schedule};
        run.layout = number++ % 2 == 0 ? "zigzag" : "striped";
        if (schedule == "ulysses") run.layout = "contiguous";
        run.kv_heads = 4;  // ulysses divides them
        run.updates = 2;
        EXPECT_EQ(masters(topology, stage, run, true), masters(topology, stage, run, false));
      }
    }
  }
}

}  // namespace
}  // namespace annulus::parameter_sharding
