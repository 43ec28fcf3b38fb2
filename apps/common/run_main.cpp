#include "common/run_main.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <Kokkos_Core.hpp>
#include <csignal>
#include <exception>
#include <string>

#include <annulus/base/printable.hpp>
#include <annulus/config/renamed.hpp>
#include <annulus/core/device.hpp>
#include <annulus/core/profile.hpp>
#include <annulus/core/threads.hpp>

#include "common/log.hpp"

namespace annulus::app {

namespace {

void start_log_of_rank(int rank, int ranks) {
  const auto logger = start_log();
  logger->set_pattern(ranks > 1 ? "%H:%M:%S %^%l%$ [rank " + std::to_string(rank) + "] %v"
                                : "%H:%M:%S %^%l%$ %v");
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  config::set_old_name_warnings([rank](const std::string& text) {
    if (rank == 0) spdlog::warn("{}", text);
  });
}

}  // namespace

int run_main(int argc, char** argv, const std::function<int(comm::MpiEnvironment&, int, char**)>& body) {
  // A limit on file sizes is then an error of the write, as a full disk is, and not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  comm::MpiEnvironment mpi(argc, argv);
  start_log_of_rank(mpi.rank(), mpi.size());
  // With others to end, the process ends inside the catch: leaving Kokkos' scope may wait for work that never
  // ends.
  const auto failed = [&](const std::exception& error) {
    if (mpi.size() > 1) mpi.abort(error.what());
    fmt::print(stderr, "annulus: rank 0: {}\n", printable_message(error.what()));
    return 1;
  };
  try {
    require_device();
    start_profile();
    const Kokkos::ScopeGuard kokkos(kokkos_settings(mpi.ranks_sharing_cores()));
    try {
      return body(mpi, argc, argv);
    } catch (const std::exception& error) {
      return failed(error);
    }
  } catch (const std::exception& error) {
    return failed(error);
  }
}

}  // namespace annulus::app
