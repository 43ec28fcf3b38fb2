#include "common/run_main.hpp"

#include <spdlog/spdlog.h>

#include <Kokkos_Core.hpp>
#include <exception>
#include <optional>
#include <string>

#include <annulus/core/device.hpp>
#include <annulus/core/profile.hpp>
#include <annulus/core/threads.hpp>

#include "common/log.hpp"
#include "common/process.hpp"

namespace annulus::app {

namespace {

void start_log_of_rank(int rank, int ranks) {
  const auto logger = start_log();
  logger->set_pattern(ranks > 1 ? "%H:%M:%S %^%l%$ [rank " + std::to_string(rank) + "] %v"
                                : "%H:%M:%S %^%l%$ %v");
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

}  // namespace

int run_main(int argc, char** argv, const std::function<int(comm::MpiEnvironment&, int, char**)>& body) {
  prepare_process();
  std::optional<comm::MpiEnvironment> started;
  // With others to end, the process ends inside the catch: leaving Kokkos' scope may wait for work that never
  // ends.
  const auto failed = [&](const std::string& problem) {
    if (started && started->size() > 1) started->abort(problem);
    say("annulus: rank 0: " + problem);
    return 1;
  };
  try {
    comm::MpiEnvironment& mpi = started.emplace(argc, argv);
    start_log_of_rank(mpi.rank(), mpi.size());
    require_device();
    start_profile();
    const Kokkos::ScopeGuard kokkos(kokkos_settings(mpi.ranks_sharing_cores(), [&](const std::string& text) {
      if (mpi.rank() == 0) spdlog::warn("{}", text);
    }));
    try {
      const int status = body(mpi, argc, argv);
      if (const std::string problem = output_problem(); status == 0 && !problem.empty())
        return failed(problem);
      return status;
    } catch (const std::exception& error) {
      return failed(problem_of(error));
    }
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

}  // namespace annulus::app
