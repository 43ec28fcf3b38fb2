// Which transport a program gets.
#include <annulus/attention/comm/transport.hpp>

#include <gmock/gmock.h>

#include "support/error_text.hpp"

namespace annulus::comm {
namespace {

using test::error_text;
using testing::StartsWith;

TEST(Transport, Names) {
  EXPECT_EQ(parse_transport("automatic"), Transport::automatic);
  EXPECT_EQ(parse_transport("mpi"), Transport::mpi);
  EXPECT_EQ(parse_transport("nccl"), Transport::nccl);
  EXPECT_THAT(error_text([] { parse_transport("ucx", "--transport"); }),
              test::mentions("--transport 'ucx'", "automatic", "mpi", "nccl"));
}

TEST(Transport, NcclWhereEveryRankHasAGpuAndMpiElsewhere) {
  const MpiEnvironment mpi;
  const bool gpus = has_nccl() && Kokkos::num_devices() >= mpi.size();  // tests run on one machine
  EXPECT_THAT(connect(mpi, Transport::mpi)->description(), StartsWith("mpi: "));
  EXPECT_THAT(connect(mpi, Transport::automatic)->description(), StartsWith(gpus ? "nccl 2." : "mpi: "));
  if (gpus) {
    EXPECT_THAT(connect(mpi, Transport::nccl)->description(), StartsWith("nccl 2."));
  }
  if (!has_nccl()) {
    EXPECT_THAT(error_text([&] { connect(mpi, Transport::nccl); }),
                StartsWith("this Annulus was built without NCCL"));
  }
}

TEST(Transport, NodesCanBeEmulated) {
  const MpiEnvironment mpi;
  EXPECT_EQ(connect(mpi, Transport::automatic, 1)->topology(), Topology::uniform(mpi.size(), 1));
}

}  // namespace
}  // namespace annulus::comm
