// The suite over MPI, whole messages and messages in small chunks, and what MPI alone promises.
#include <annulus/attention/comm/mpi.hpp>

#include <gmock/gmock.h>

#include <limits>

#include "attention/comm/mpi/communicator.hpp"
#include "attention/comm/suite/suite.hpp"
#include "support/error_text.hpp"

namespace annulus::comm {
namespace {

using test::error_text;
using testing::HasSubstr;

class MpiSuite : public testing::TestWithParam<suite::Case> {};

TEST_P(MpiSuite, Holds) {
  const MpiEnvironment environment;
  const auto comm = environment.world();
  GetParam().run(*comm);
}

/// Nodes of two ranks, and every message, gather and broadcast above 1000 bytes split.
TEST_P(MpiSuite, HoldsInPieces) {
  const MpiEnvironment environment;
  MpiCommunicator comm(MPI_COMM_WORLD, Topology::uniform(environment.size(), 2), 1000);
  GetParam().run(comm);
}

INSTANTIATE_TEST_SUITE_P(Comm, MpiSuite, testing::ValuesIn(suite::all_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(MpiDeviceMemory, GoesAsItIsWhereMpiReadsItOrIsSaidTo) {
  for (const bool aware : {false, true}) {
    EXPECT_FALSE(sends_device_memory("", false, aware)) << "without a device there is no such memory";
    EXPECT_FALSE(sends_device_memory("direct", false, aware));
    EXPECT_EQ(sends_device_memory("", true, aware), aware);
    EXPECT_TRUE(sends_device_memory("direct", true, aware));
    EXPECT_FALSE(sends_device_memory("staged", true, aware));
  }
  EXPECT_THAT(test::error_text([] { sends_device_memory("yes", true, true); }),
              testing::StartsWith("ANNULUS_MPI_DEVICE_MEMORY is 'yes': set it to direct"));
}

TEST(Mpi, EnvironmentKnowsTheJob) {
  const MpiEnvironment environment;
  int size = 0, rank = -1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  EXPECT_EQ(environment.size(), size);
  EXPECT_EQ(environment.rank(), rank);
  EXPECT_GE(environment.ranks_sharing_cores(), 1);
  EXPECT_LE(environment.ranks_sharing_cores(), size);
  const auto comm = environment.world();
  EXPECT_EQ(comm->rank(), rank);
  EXPECT_EQ(comm->topology(), Topology::uniform(size, size));
  EXPECT_THAT(comm->description(), testing::StartsWith("mpi: "));
}

TEST(Mpi, NodesCanBeEmulated) {
  const MpiEnvironment environment;
  for (int ranks = 1; ranks <= environment.size(); ++ranks)
    EXPECT_EQ(environment.world(ranks)->topology(), Topology::uniform(environment.size(), ranks));
}

TEST(Mpi, BadRanksPerNodeIsAnErrorOnAllRanks) {
  const MpiEnvironment environment;
  EXPECT_THAT(error_text([&] { environment.world(-1); }), HasSubstr("-1 ranks per node"));
  EXPECT_THAT(error_text([&] { environment.world(environment.size() + 1); }), HasSubstr("ranks per node"));
  if (environment.size() > 1) {
    EXPECT_THAT(error_text([&] { environment.world(environment.rank() == 0 ? 2 : 1); }),
                HasSubstr("ranks disagree about the ranks per node: from 1 to 2"));
  }
  EXPECT_EQ(environment.world()->all_reduce_value(1, ReduceOp::sum), environment.size());
}

TEST(Mpi, TopologyMustFitTheCommunicator) {
  const int size = MpiEnvironment().size();
  EXPECT_THAT(error_text([&] { MpiCommunicator(MPI_COMM_WORLD, Topology::uniform(size + 1, 1)); }),
              HasSubstr("the topology has " + std::to_string(size + 1) + " ranks"));
}

TEST(Mpi, ChannelsEndWhereTagsEnd) {
  int known = 0, *upper = nullptr;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper, &known);
  ASSERT_TRUE(known);
  const auto comm = MpiEnvironment().world();
  int value = 1, got = 0;
  suite::exchange_one(*comm, {&value, 4, comm->rank()}, {&got, 4, comm->rank()}, *upper).wait();
  EXPECT_EQ(got, 1);
  if (*upper < std::numeric_limits<int>::max()) {
    EXPECT_THAT(error_text([&] {
                  suite::send_one(*comm, {&value, 4, comm->rank()}, *upper + 1);
                }),
                HasSubstr("channels up to"));
  }
}

/// Errors of MPI itself carry the call, the rank and MPI's words, instead of ending the program.
TEST(Mpi, ErrorsNameCallAndRank) {
  const MpiEnvironment environment;
  const std::string text =
      error_text([] { ANNULUS_MPI(MPI_Send, nullptr, 0, MPI_BYTE, 1 << 20, 0, MPI_COMM_WORLD); });
  EXPECT_THAT(text, HasSubstr("MPI_Send failed on rank " + std::to_string(environment.rank())));
  EXPECT_THAT(text, testing::AnyOf(HasSubstr("MPI_ERR_RANK"), HasSubstr("Invalid rank")));  // Open MPI, MPICH
}

}  // namespace
}  // namespace annulus::comm
