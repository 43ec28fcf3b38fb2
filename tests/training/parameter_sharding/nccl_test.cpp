// Sharding and ring attention over NCCL communicators of their own, which share the GPU.
#include <gtest/gtest.h>

#include <annulus/attention/comm/mpi.hpp>
#include <annulus/attention/comm/transport.hpp>

#include <set>

#include "support/nccl_nodes.hpp"
#include "training/parameter_sharding/tiny_model.hpp"

namespace annulus::parameter_sharding {
namespace {

using test::TestExec;

void fill(const TestExec& exec, const Array1<float, TestExec>& values, int rank) {
  Kokkos::parallel_for(
      "annulus::test::values",
      Kokkos::RangePolicy<TestExec>(exec, 0, static_cast<std::int64_t>(values.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i) {
        const auto z =
            static_cast<std::uint32_t>(i) * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u;
        values(i) = static_cast<float>((z ^ (z >> 15)) % 2001) * 1e-3f - 1.0f;
      });
}

class ShardedNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_nccl()) GTEST_SKIP() << "built without NCCL";
    ASSERT_GT(Kokkos::num_devices(), 0) << "a test for machines with a GPU";
    test::let_ranks_share_gpus(mpi_.rank(), mpi_.size());
  }

  static std::vector<float> masters(comm::Communicator& world, Stage stage, const tiny::Setting& run) {
    return tiny::masters<bfloat16>(world, *world.split(0, world.rank()), test::rank_instance(), stage, run);
  }

  comm::MpiEnvironment mpi_;
};

// With one CTA a communicator an operation that is launched first, but whose partners come last, would keep
// those behind it waiting. On one node, and on nodes of two ranks, where collectives have two stages.
TEST_F(ShardedNccl, FiveHundredUpdatesWithOneCtaACommunicator) {
  for (const int ranks_per_node : std::set{mpi_.size(), 2}) {
    const auto nccl = comm::make_nccl(mpi_.world(ranks_per_node), {.max_ctas = 1});
    const auto mpi = mpi_.world(ranks_per_node);
    for (const auto& [stage, schedule] :
         {std::pair{Stage::parameters, "burst"}, {Stage::gradients, "ring"}}) {
      tiny::Setting run{.schedule = schedule};
      run.updates = 500;
      const std::vector<float> found = masters(*nccl, stage, run);
      run.updates = 20;
      EXPECT_TRUE(masters(*nccl, stage, run) == masters(*mpi, stage, run));
      for (const float value : found) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

// ncclReduceScatter rounds otherwise than sums in rank order.
TEST_F(ShardedNccl, NativeSumsAgree) {
  const auto nccl = comm::make_nccl(mpi_.world());
  const TestExec exec = test::rank_instance();
  constexpr std::int64_t count = 100000;
  const auto ranks = static_cast<std::size_t>(nccl->size());
  const Array1<float, TestExec> values("values", count * ranks), in_order("in_order", count),
      native("native", count);
  fill(exec, values, nccl->rank());
  comm::Request first = nccl->start_reduce_scatter(exec, values, in_order, 0);
  comm::Request second = nccl->start_reduce_scatter(exec, values, native, 1, comm::Sums::native);
  first.wait();
  second.wait();
  const std::vector<float> a = tiny::on_host(exec, in_order), b = tiny::on_host(exec, native);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6 * static_cast<double>(ranks));
  const Array1<float, TestExec> whole("whole", count);
  Kokkos::deep_copy(exec, whole, native);
  nccl->all_reduce(exec, whole, comm::ReduceOp::sum, comm::Sums::native);
  nccl->all_reduce(exec, native, comm::ReduceOp::sum);
  const std::vector<float> c = tiny::on_host(exec, whole), d = tiny::on_host(exec, native);
  for (std::size_t i = 0; i < c.size(); ++i)
    ASSERT_NEAR(c[i], d[i], 2e-6 * static_cast<double>(ranks * ranks));
}

}  // namespace
}  // namespace annulus::parameter_sharding
