// A job in which rank 1 is lost or stuck, in the way that the argument names ("none": not at all), in its
// second compute of ring attention's backward pass or in a collective. No wait may take longer than the
// second argument says, in milliseconds. The third is the transport: mpi, with memory of the host, or nccl,
// with memory of GPUs. mpi_stall_test.cpp and nccl_stall_test.cpp run it under mpirun and look at what is
// left of it.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include <annulus/attention/comm/transport.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/base/kokkos/start.hpp>

#include "attention/comm/watchdog.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/nccl_nodes.hpp"

namespace annulus {
namespace {

using namespace std::chrono_literals;

constexpr auto for_ever = 1h;

void get_lost(const std::string& how) {
  if (how == "sleep") std::this_thread::sleep_for(for_ever);
  if (how == "loop")
    for (volatile bool forever = true; forever;) continue;
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "kill") std::raise(SIGKILL);
  if (how == "exit") std::_Exit(0);
  if (how == "fail") fail("the kernel failed");
}

template <class Exec>
void attend(comm::Communicator& communicator, const std::string& how, std::chrono::milliseconds timeout) {
  const int rank = communicator.rank();
  const auto of = test::AttentionProblem::random({96, 16, 1, 2, 2}, "full");
  const plan::Problem problem = test::planning_problem(of, communicator.topology(), Layout());
  int computes = 0;
  executor::Settings settings{.stall_timeout = timeout};
  settings.synthetic_kernel = [&](const executor::LocalWork& work) {
    if (work.pass == plan::Pass::forward || ++computes != 2) return;
    if (rank == 1) get_lost(how);
    if (rank == 2 && how == "stop") std::this_thread::sleep_for(for_ever);  // alive, but it does not wait
  };
  const Exec exec;
  executor::Attention<Exec, float> attention(exec, communicator, {test::plans_of("ring", problem)}, settings);
  test::RankRows<float, Exec>(exec, of, problem.shard(rank)).run(exec, attention);
  exec.fence("annulus::test: both passes are done");
}

template <class Exec>
void run(comm::Communicator& communicator, const std::string& how, std::chrono::milliseconds timeout) {
  if (how == "leave" && communicator.rank() == 1) return;
  if (how == "collective") {
    if (communicator.rank() == 1) get_lost("stop");
    const Exec exec;
    const Array1<float, Exec> gradients("gradients", 1 << 16);
    communicator.all_reduce(exec, gradients);
    exec.fence("annulus::test: the gradients are added up");
  }
  if (how == "gather") {  // under way while the rank goes on, as those of sharding
    if (communicator.rank() == 1) get_lost("stop");
    const Exec exec;
    const Array1<float, Exec> one("one", 1 << 16),
        all("all", static_cast<std::size_t>(communicator.size()) << 16);
    const auto scope = [&] {
      return comm::Watchdog::ActivityScope(communicator.watchdog(),
                                           "the all-gather of the weights of layer 3");
    };
    comm::Request request;
    {
      const auto starts = scope();
      request = communicator.start_all_gather(exec, one, all, 1);
    }
    {
      const auto waits = scope();
      request.wait();
    }
    exec.fence("annulus::test: the weights are there");
  }
  if (how == "patience") {  // rank 0 may take its time
    const comm::Watchdog::ActivityScope activity(communicator.watchdog(), "rank 0 writes a file", 1min);
    if (communicator.rank() == 0) std::this_thread::sleep_for(timeout + 1500ms);
    communicator.barrier();
  }
  attend<Exec>(communicator, how, timeout);
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  const annulus::comm::MpiEnvironment environment(argc, argv);
  const Kokkos::ScopeGuard kokkos(annulus::kokkos_settings(environment.ranks_sharing_cores()));
  const std::chrono::milliseconds timeout(std::atoi(argv[2]));
  environment.set_stall_timeout(timeout);
  try {
    const auto transport = annulus::comm::parse_transport(argv[3]);
    annulus::test::let_ranks_share_gpus(environment.rank(), environment.size());
    const auto world = annulus::comm::connect(environment, transport);
    const auto run = transport == annulus::comm::Transport::nccl ? annulus::run<Kokkos::DefaultExecutionSpace>
                                                                 : annulus::run<annulus::HostExec>;
    run(*world, argv[1], timeout);
  } catch (const std::exception& error) {
    environment.abort(error.what());
  }
}
