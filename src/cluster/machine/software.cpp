// Versions that have to agree between the nodes of a job.
#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <string>

#include <annulus/base/version.hpp>

#include "cluster/machine/hwloc_topology.hpp"

namespace annulus::machine {
namespace {

/// The NCCL that programs of this environment load, "2.27.3"; empty without one.
std::string nccl_version() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return {};
  const auto version = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  int code = 0;
  const bool known = version != nullptr && version(&code) == 0;
  // The library is left open: some versions have threads that outlive their last user.
  return known ? fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100) : std::string();
}

}  // namespace

void annotate_software(hwloc_topology_t topology) {
  hwloc_obj_t root = hwloc_get_root_obj(topology);
  const auto add = [&](std::string_view name, const std::string& value) {
    const std::string key = std::string(attribute::software) + std::string(name);
    if (!value.empty()) hwloc_obj_add_info(root, key.c_str(), value.c_str());
  };
  add("annulus", fmt::format("{} ({})", version(), git_hash()));
  add("NCCL", nccl_version());
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  hwloc_obj_add_info(root, attribute::clock, fmt::format("{:.1f}", now.count()).c_str());
}

}  // namespace annulus::machine
