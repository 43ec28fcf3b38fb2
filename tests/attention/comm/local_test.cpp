// The suite over null and over loopback.
#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>

#include <gmock/gmock.h>

#include "attention/comm/suite/suite.hpp"

namespace annulus::comm {
namespace {

class NullSuite : public testing::TestWithParam<suite::Case> {};

TEST_P(NullSuite, Holds) {
  const auto comm = make_null();
  EXPECT_EQ(comm->size(), 1);
  EXPECT_THAT(comm->description(), testing::StartsWith("null"));
  GetParam().run(*comm);
}

INSTANTIATE_TEST_SUITE_P(Comm, NullSuite, testing::ValuesIn(suite::all_cases()),
                         [](const auto& info) { return info.param.name; });

class LoopbackSuite : public testing::TestWithParam<std::tuple<suite::Case, Topology>> {};

TEST_P(LoopbackSuite, Holds) {
  const auto& [suite_case, topology] = GetParam();
  run_loopback(topology, [&, run = suite_case.run](Communicator& comm) {
    EXPECT_EQ(comm.topology(), topology);
    run(comm);
  });
}

std::string name_of_case(const testing::TestParamInfo<LoopbackSuite::ParamType>& info) {
  const auto& [suite_case, topology] = info.param;
  return suite_case.name + "_" + std::to_string(topology.ranks()) + "ranks_" +
         std::to_string(topology.nodes()) + "nodes";
}

INSTANTIATE_TEST_SUITE_P(Comm, LoopbackSuite,
                         testing::Combine(testing::ValuesIn(suite::all_cases()),
                                          testing::Values(Topology::uniform(1, 1), Topology::uniform(2, 1),
                                                          Topology::uniform(3, 2), Topology::uniform(4, 2),
                                                          Topology::uniform(8, 4))),
                         name_of_case);

}  // namespace
}  // namespace annulus::comm
