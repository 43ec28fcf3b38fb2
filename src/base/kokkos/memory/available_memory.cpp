#include <annulus/base/kokkos/memory_use.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace annulus {

namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

/// MemAvailable of /proc/meminfo, in bytes.
std::int64_t of_the_machine() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("MemAvailable:")) return std::stoll(line.substr(13)) * 1024;
  }
  return unlimited;
}

std::int64_t number_in(const std::filesystem::path& path, std::int64_t otherwise) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? number : otherwise;  // "max" is no number
}

/// What the control group of this process (version 2) has left, and those around it.
std::int64_t of_the_control_groups() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("0::/")) continue;
  if (!line.starts_with("0::/")) return unlimited;
  const std::filesystem::path root = "/sys/fs/cgroup";
  std::int64_t least = unlimited;
  for (std::filesystem::path group = root / line.substr(4);; group = group.parent_path()) {
    const std::int64_t limit = number_in(group / "memory.max", unlimited);
    if (limit != unlimited)
      least = std::min(least, std::max<std::int64_t>(0, limit - number_in(group / "memory.current", 0)));
    if (group == root || !group.has_relative_path()) return least;
  }
}

}  // namespace

std::int64_t available_host_memory() {
  return std::min(of_the_machine(), of_the_control_groups());
}

}  // namespace annulus
