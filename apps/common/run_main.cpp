#include "common/run_main.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <Kokkos_Core.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include <annulus/config/renamed.hpp>
#include <annulus/core/device.hpp>
#include <annulus/core/profile.hpp>
#include <annulus/core/threads.hpp>

#include "common/process.hpp"

namespace annulus::app {

namespace {

void start_log(int rank, int ranks) {
  const auto logger =
      std::make_shared<spdlog::logger>("annulus", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern(ranks > 1 ? "%H:%M:%S %^%l%$ [rank " + std::to_string(rank) + "] %v"
                                : "%H:%M:%S %^%l%$ %v");
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  spdlog::set_default_logger(logger);
  config::set_old_name_warnings([rank](const std::string& text) {
    if (rank == 0) spdlog::warn("{}", text);
  });
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
    start_log(mpi.rank(), mpi.size());
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
