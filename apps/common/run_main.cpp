#include "common/run_main.hpp"

#include <spdlog/spdlog.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <annulus/base/kokkos/start.hpp>

#include "base/kokkos/execution/profile.hpp"
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

/// Whether the arguments ask for what one rank answers alone, without the others.
comm::MpiEnvironment::For purpose_of(int argc, char** argv) {
  constexpr auto questions =
      std::to_array<std::string_view>({"-h", "--help", "--version", "--print-config", "--plan-memory"});
  const std::span<char*> all(argv, static_cast<std::size_t>(argc));
  const auto end =
      std::ranges::find(all, std::string_view("--"), [](const char* text) { return std::string_view(text); });
  const bool asks = std::any_of(all.begin(), end, [&](const char* text) {
    return std::ranges::find(questions, text) != questions.end();
  });
  return asks ? comm::MpiEnvironment::For::an_answer : comm::MpiEnvironment::For::all_ranks;
}

}  // namespace

int run_main(int argc, char** argv, const std::function<int(comm::MpiEnvironment&, int, char**)>& body) {
  prepare_process();
  std::optional<comm::MpiEnvironment> started;
  // With others to end, the process ends inside the catch: leaving Kokkos' scope may wait for work that never
  // ends.
  const auto failed = [&](const std::string& problem) {
    if (started && started->size() > 1) started->abort(problem);
    end_with_reader();
    say("annulus: rank 0: " + problem);
    return 1;
  };
  try {
    const auto purpose = purpose_of(argc, argv);
    comm::MpiEnvironment& mpi = started.emplace(argc, argv, purpose);
    start_log_of_rank(mpi.rank(), mpi.size());
    start_profile();
    std::optional<Kokkos::ScopeGuard> kokkos;
    // Kokkos does not start without a GPU in a build for GPUs. Login nodes have none, and help and plans need
    // none.
    if (purpose == comm::MpiEnvironment::For::all_ranks || finds_device()) {
      require_device();
      kokkos.emplace(kokkos_settings(mpi.ranks_sharing_cores(), [&](const std::string& text) {
        if (mpi.rank() == 0) spdlog::warn(text);
      }));
    }
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
