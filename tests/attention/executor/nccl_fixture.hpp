#pragma once

#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include <annulus/attention/comm/mpi.hpp>
#include <annulus/attention/comm/transport.hpp>

#include "support/nccl_nodes.hpp"

namespace annulus::test {

/// Ranks over MPI that can start NCCL.
class DistributedNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_nccl()) GTEST_SKIP() << "built without NCCL";
    ASSERT_GT(Kokkos::num_devices(), 0) << "a test for machines with a GPU";
    if (mpi_.size() > 4 * Kokkos::num_devices())
      GTEST_SKIP()
          << "ranks that take turns on a GPU take as many times as long: 4 ranks on it test the same";
    let_ranks_share_gpus(mpi_.rank(), mpi_.size());
  }
  comm::MpiEnvironment mpi_;
};

}  // namespace annulus::test
