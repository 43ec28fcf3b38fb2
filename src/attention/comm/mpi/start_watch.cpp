#include "attention/comm/mpi/start_watch.hpp"

#include <fmt/ranges.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <annulus/base/error.hpp>

#include "attention/comm/agreement.hpp"
#include "attention/comm/mpi/communicator.hpp"
#include "base/parse_number.hpp"
#include "base/system/signals.hpp"
#include "cluster/topology/job.hpp"

namespace annulus::comm {

namespace {

using namespace std::chrono_literals;

constexpr auto look = 100ms;
constexpr int default_seconds = 300;

int start_timeout() {
  const char* const text = std::getenv("ANNULUS_START_TIMEOUT");
  if (text == nullptr || *text == '\0') return default_seconds;
  const int seconds = parse_number<int>(text).value_or(-1);
  require(seconds >= 0, "ANNULUS_START_TIMEOUT='{}' is not a number of seconds: correct or unset it", text);
  return seconds;
}

std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A process of /proc.
struct Process {
  Variables variables;
  char state = '?';  ///< T and t: stopped, by a signal or a debugger
  int parent = 0;
};

std::optional<Process> process_of(const std::filesystem::path& folder) {
  const std::string status = contents(folder / "stat"), environment = contents(folder / "environ");
  const auto name_end = status.rfind(')');  // "PID (NAME) STATE PARENT …"
  if (environment.empty() || name_end == std::string::npos || name_end + 4 > status.size()) return {};
  Process process;
  process.state = status[name_end + 2];
  process.parent = std::atoi(status.c_str() + name_end + 4);
  process.variables = [all = '\0' + environment](const std::string& name) -> std::optional<std::string> {
    const auto at = all.find('\0' + name + '=');
    if (at == std::string::npos) return {};
    return all.substr(at + name.size() + 2, all.find('\0', at + 1) - at - name.size() - 2);
  };
  return process;
}

/// Started by one launcher: it has named its job alike, or is the parent of both.
bool of_one_job(const Process& a, const Process& b) {
  bool named = false;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    if (a.variables(name) != b.variables(name)) return false;
    named = named || a.variables(name).has_value();
  }
  return named || a.parent == b.parent;
}

/// This process among those of its launcher; nothing where variables that are none of this step's contradict
/// each other.
std::optional<LaunchedRank> launched_here() try {
  return launched_rank(process_variables());
} catch (const Error&) {
  return {};
}

/// What holds up the start, as far as this machine shows it.
std::string cause() try {
  const auto self = process_of("/proc/self");
  const auto here = launched_here();
  if (!self || !here) return "its processes cannot be looked at";
  std::map<int, int> ranks;  // a process of each
  std::vector<std::string> stopped;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; entry != end; entry.increment(error)) {
    const int pid = std::atoi(entry->path().filename().c_str());
    const auto process = pid > 0 ? process_of(entry->path()) : std::nullopt;
    if (!process || !of_one_job(*self, *process)) continue;
    const auto launched = launched_rank(process->variables);
    if (!launched) continue;
    ranks.emplace(launched->rank, pid);
    if (process->state == 'T' || process->state == 't')
      stopped.push_back(fmt::format("rank {} (process {})", launched->rank, pid));
  }
  if (!stopped.empty())
    return fmt::format(
        "{} of this machine {} stopped, by a signal or a debugger: "
        "let it go on (kill -CONT), or start anew",
        fmt::join(stopped, ", "), stopped.size() == 1 ? "is" : "are");
  if (static_cast<int>(ranks.size()) < here->local_ranks)
    return fmt::format(
        "{} of the {} ranks of this machine are there: see what the launcher says of the others",
        ranks.size(), here->local_ranks);
  return "all ranks of this machine are there and none is stopped: "
         "look at the other machines, and at the network";
} catch (const std::exception& error) {  // nobody above this thread takes it
  return fmt::format("its processes cannot be looked at ({})", error.what());
}

}  // namespace

StartWatch::StartWatch() {
  const int seconds = start_timeout();
  const auto here = launched_here();
  if (seconds == 0 || !here) return;
  thread_ = thread_without_signals([seconds, rank = here->rank](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any never;
    // Counts looks, not the clock: the process may be suspended.
    const auto ends_within = [&](std::chrono::milliseconds time) {
      std::unique_lock lock(mutex);
      for (; time > 0ms && !stop.stop_requested(); time -= look)
        never.wait_for(lock, stop, look, [] { return false; });
      return stop.stop_requested();
    };
    // The lowest rank that is not stopped speaks for all.
    if (ends_within(std::chrono::seconds(seconds)) || ends_within(speaks_after(rank))) return;
    write_line(
        rank,
        fmt::format("MPI has not started on {} within {} s: {}; ANNULUS_START_TIMEOUT gives it more time",
                    machine_name(), seconds, cause()));
    std::_Exit(1);
  });
}

}  // namespace annulus::comm
