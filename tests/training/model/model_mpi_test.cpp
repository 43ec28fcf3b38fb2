#include <gtest/gtest.h>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/mpi.hpp>

#include "model_problem.hpp"

namespace annulus {
namespace {

// The loopback tests cover layouts and schedules; this one shows that MPI carries the same result.
TEST(ModelOverMpi, GivesTheLossAndGradientsOfOneRank) {
  const comm::MpiEnvironment mpi;
  const auto world = mpi.world();
  const test::ModelProblem problem(31, "documents:0,9,20");
  const auto alone = comm::make_null();
  const auto one = problem.run(*alone, "contiguous", "ring");
  for (const char* layout : {"zigzag", "striped"}) {
    const auto many = problem.run(*world, layout, "burst");
    EXPECT_EQ(many.valid, one.valid);
    EXPECT_NEAR(many.loss, one.loss, 1e-6 * one.loss);
    EXPECT_LT(test::relative_error(many.gradients, one.gradients), 3e-6);
  }
}

}  // namespace
}  // namespace annulus
