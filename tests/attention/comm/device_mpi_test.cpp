// Memory of the execution space over MPI, and over NCCL where every rank has a GPU.
#include <annulus/attention/comm/mpi.hpp>
#include <annulus/attention/comm/transport.hpp>

#include <gmock/gmock.h>

#include "attention/comm/suite/device.hpp"

namespace annulus::comm {
namespace {

class DeviceMemoryMpi : public testing::TestWithParam<suite::Case> {
 protected:
  MpiEnvironment mpi_;
};

TEST_P(DeviceMemoryMpi, OverMpi) {
  GetParam().run(*mpi_.world());
  if (mpi_.size() == 4) GetParam().run(*mpi_.world(2));
}

TEST_P(DeviceMemoryMpi, OverNccl) {
  if (test::on_host || !has_nccl()) GTEST_SKIP() << "NCCL is for GPUs";
  if (Kokkos::num_devices() < mpi_.size()) GTEST_SKIP() << "NCCL wants a GPU a rank";
  for (const bool copy_engines : {true, false}) {
    const auto comm = make_nccl(mpi_.world(), {.copy_engines = copy_engines});
    EXPECT_THAT(comm->description(), testing::StartsWith("nccl 2."));
    GetParam().run(*comm);
    if (mpi_.size() == 4)  // collectives have two stages
      GetParam().run(*make_nccl(mpi_.world(2), {.copy_engines = copy_engines}));
  }
}

INSTANTIATE_TEST_SUITE_P(Comm, DeviceMemoryMpi, testing::ValuesIn(suite::device_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Nccl, RanksThatShareAGpuAreRefused) {
  const MpiEnvironment mpi;
  if (!has_nccl()) {
    EXPECT_THAT(test::error_text([&] { make_nccl(mpi.world()); }), testing::HasSubstr("built without NCCL"));
  } else if (Kokkos::num_devices() < mpi.size()) {
    EXPECT_THAT(test::error_text([&] { make_nccl(mpi.world()); }), testing::HasSubstr("both use the GPU"));
  }
}

}  // namespace
}  // namespace annulus::comm
