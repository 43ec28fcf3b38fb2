#include "topology/described.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <annulus/base/error.hpp>

namespace annulus::topology_app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view save_command =
    "srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 annulus-topology --save";

std::string before_dot(const std::string& host) {
  return host.substr(0, host.find('.'));
}

}  // namespace

bool same_host(const std::string& a, const std::string& b) {
  return a == b || (before_dot(a) == before_dot(b) && (before_dot(a) == a || before_dot(b) == b));
}

std::vector<Machine> read_files(const std::vector<std::string>& files) {
  std::vector<Machine> machines;
  for (const std::string& file : files) {
    const std::size_t equals = file.find('=');
    std::error_code error;
    const bool named = equals != file.npos && !fs::exists(file, error);
    const std::string host = named ? file.substr(0, equals) : "";
    require(!named || std::ranges::find(machines, host, &Machine::host) == machines.end(),
            "--xml {}: the node '{}' is there twice: give each a name of its own", file, host);
    machines.push_back(named ? machine::read_machine(file.substr(equals + 1), host)
                             : machine::read_machine(file));
  }
  return machines;
}

std::vector<Machine> read_folder(const std::string& name) {
  const fs::path folder(name);
  std::error_code error;
  require(fs::is_directory(folder, error),
          "--from {}: there is no such folder: let every node write into it first ({} {})", folder.string(),
          save_command, folder.string());
  std::vector<Machine> machines;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::directory_entry& entry = *entries;
    // Slurm's name of the node is the file's; it need not be the system's.
    if (entry.path().extension() == ".xml")
      machines.push_back(machine::read_machine(entry.path().string(), entry.path().stem().string()));
  }
  require(!error, "--from {}: the folder cannot be read ({}): check its permissions", folder.string(),
          error.message());
  std::ranges::sort(machines, {}, &Machine::host);
  require(!machines.empty(), "--from {}: no HOST.xml there: let every node write one ({} {})",
          folder.string(), save_command, folder.string());
  return machines;
}

std::vector<Machine> in_job_order(std::vector<Machine> machines, const Job& job, const std::string& folder) {
  std::vector<Machine> ordered;
  for (const std::string& host : job.hosts) {
    const auto found =
        std::ranges::find_if(machines, [&](const Machine& m) { return same_host(m.host, host); });
    if (found == machines.end() && folder.empty()) continue;  // --xml may show some nodes of a job
    require(found != machines.end(),
            "node {} of the job has left no description in {}: is the folder on a file system that all nodes "
            "share? Write it again ({} {})",
            host, folder, save_command, folder);
    ordered.push_back(*found);
    ordered.back().host = host;
  }
  return ordered.empty() ? machines : ordered;
}

}  // namespace annulus::topology_app
