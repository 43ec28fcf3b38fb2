// main of test programs that run under mpirun: rank 0 reports, the others speak only of failures, with their
// rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#define OMPI_SKIP_MPICXX 1  // the C++ bindings would need a library of their own
#include <mpi.h>

#include <Kokkos_Core.hpp>
#include <exception>
#include <iostream>

namespace {

class FailuresWithRank : public testing::EmptyTestEventListener {
 public:
  explicit FailuresWithRank(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "[rank " << rank_ << "] " << (result.file_name() ? result.file_name() : "?") << ":"
              << result.line_number() << ": " << result.message() << std::endl;
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::InitGoogleMock(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresWithRank(rank));
  }
  // An exception that leaves a test would leave the other ranks waiting until the test times out: it ends the
  // job.
  testing::GTEST_FLAG(catch_exceptions) = false;
  int failed = 0;
  try {
    Kokkos::ScopeGuard kokkos(argc, argv);
    failed = RUN_ALL_TESTS();
  } catch (const std::exception& error) {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    std::cerr << "[rank " << rank << "] " << (test ? test->name() : "?") << " threw: " << error.what()
              << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
