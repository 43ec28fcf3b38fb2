// Memory of the execution space over null and loopback.
#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>

#include "attention/comm/reductions/reduce.hpp"
#include "attention/comm/suite/device.hpp"

namespace annulus::comm {
namespace {

class DeviceMemory : public testing::TestWithParam<suite::Case> {};

TEST_P(DeviceMemory, OverNull) {
  GetParam().run(*make_null());
}

TEST_P(DeviceMemory, OverLoopback) {
  for (const int ranks : {1, 2, 3, 4}) run_loopback(Topology::uniform(ranks, ranks), GetParam().run);
  if (GetParam().name != "ReductionsInRankOrder")  // blocking ones are the host's, and large
    run_loopback(Topology::uniform(4, 2), GetParam().run);
}

INSTANTIATE_TEST_SUITE_P(Comm, DeviceMemory, testing::ValuesIn(suite::device_cases()),
                         [](const auto& info) { return info.param.name; });

/// Combines `count` elements of each of `ranks` ranks in the place of those of the middle one.
template <class T>
void check_reduction_of(int ranks, std::size_t count, ReduceOp op) {
  const test::TestExec exec = test::rank_instance();
  const int rank = ranks / 2;
  std::vector<T> others, own(count), wanted(count);
  for (int r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < count; ++i)
      (r == rank ? own[i] : others.emplace_back()) = suite::contribution<T>(r, i);
  for (std::size_t i = 0; i < count; ++i) wanted[i] = suite::expected<T>(ranks, i, op);
  const Array1<T, test::TestExec> memory("annulus::test::others", others.size()),
      result("annulus::test::result", count);
  const Queue queue(exec);
  queue.copy_from_host(memory.data(), others.data(), others.size() * sizeof(T));
  queue.copy_from_host(result.data(), own.data(), count * sizeof(T));
  const Contributions all{.first = reinterpret_cast<const std::byte*>(memory.data()),
                          .stride = count * sizeof(T),
                          .ranks = ranks,
                          .rank = rank,
                          .own = reinterpret_cast<const std::byte*>(result.data())};
  reduce_in_order(queue, dtype_of<T>, op, all, result.data(), count);
  queue.copy_to_host(own.data(), result.data(), count * sizeof(T));
  queue.fence("annulus::test: the host looks");
  EXPECT_TRUE(suite::same_bits(own.data(), wanted.data(), count)) << ranks << " ranks";
}

// Devices combine eight ranks at a time, and 16 bytes of f32 where all blocks are aligned.
TEST(DeviceReductions, AreThoseOfTheHostForAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 24, 25, 40, 63, 64, 65, 100, 1023}) {
    check_reduction_of<float>(ranks, 1000, ReduceOp::sum);
    check_reduction_of<float>(ranks, 999, ReduceOp::sum);
    check_reduction_of<bfloat16>(ranks, 999, ReduceOp::sum);
    check_reduction_of<double>(ranks, 17, ReduceOp::sum);
    check_reduction_of<std::int64_t>(ranks, 17, ReduceOp::min);
  }
}

}  // namespace
}  // namespace annulus::comm
