// Memory of the execution space over null and loopback.
#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>

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

}  // namespace
}  // namespace annulus::comm
