// A job in which the rank that the second argument names fails the way that the first one names ("none": not
// at all). mpi_failure_test.cpp runs it under mpirun and looks at what is left of it.
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include <annulus/attention/comm/mpi.hpp>
#include <annulus/base/kokkos/start.hpp>

#include "attention/comm/suite/suite.hpp"

namespace annulus::comm {
namespace {

void run(Communicator& comm, const std::string& how, int who) {
  const bool fails = comm.rank() == who;
  const int peer = (who + 1) % comm.size();
  std::vector<char> large(std::size_t{1} << 24), other(large.size());
  comm.barrier();
  if (how == "none") return;
  if (how == "all") fail("the configuration is wrong\nin every rank");
  if (how == "sizes") {  // the receiver is who fails
    if (comm.rank() == peer) suite::send_one(comm, {large.data(), 100, who}).wait();
    if (fails) suite::receive_one(comm, {large.data(), 50, peer}).wait();
  } else if (how == "receive") {
    if (fails) fail("the shard is truncated");
  } else if (how == "long") {
    if (fails) fail("the shard is truncated ('{}'): copy it", std::string(3'000'000, 'x'));
  } else if (how == "collective") {
    if (fails) fail("the shard is truncated");
    comm.all_reduce(suite::host_queue(), large.data(), large.size() / 4, DType::f32, ReduceOp::sum);
  } else if (how == "pending") {  // with a send and a receive under way that nobody will ever answer
    const Request request =
        fails ? suite::exchange_one(comm, suite::send_of(large, peer), suite::receive_of(other, peer))
              : Request();
    if (fails) fail("the shard is truncated");
    suite::receive_one(comm, suite::receive_of(other, who), 1).wait();
  }
  suite::receive_one(comm, suite::receive_of(large, peer), 9).wait();  // never sent
}

}  // namespace
}  // namespace annulus::comm

int main(int argc, char** argv) {
  const std::string how = argv[1];
  const int who = std::atoi(argv[2]);
  // While the others wait for it in MPI_Init.
  if (const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
      how == "stopped" && rank != nullptr && std::atoi(rank) == who) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it outlives no mpirun, whose output a test waits for
    std::raise(SIGSTOP);
  }
  if (how == "uncaught") {  // the error leaves the life of the environment
    try {
      const annulus::comm::MpiEnvironment environment(argc, argv);
      const Kokkos::ScopeGuard kokkos(annulus::kokkos_settings(environment.ranks_sharing_cores()));
      annulus::comm::run(*environment.world(), "receive", who);
    } catch (const std::exception&) {
      return 3;
    }
    return 0;
  }
  const annulus::comm::MpiEnvironment environment(argc, argv);
  const Kokkos::ScopeGuard kokkos(annulus::kokkos_settings(environment.ranks_sharing_cores()));
  std::signal(SIGTERM, [](int) {});  // like a trainer, which saves and ends on its own when it can
  try {
    annulus::comm::run(*environment.world(), how, who);
  } catch (const std::exception& error) {
    environment.abort(error.what());
  }
}
