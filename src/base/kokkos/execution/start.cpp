#include <annulus/base/kokkos/start.hpp>

#include <dlfcn.h>
#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/kokkos/execution/threads.hpp"
#include "base/kokkos/gpu_runtime.hpp"
#include "base/parse_number.hpp"

namespace annulus {

namespace {

/// GPUs that this process may use, and why there are none; in a build for CPUs nobody asks for them.
std::pair<int, const char*> devices() {
#ifdef ANNULUS_GPU_RUNTIME
  int count = 0;
  const GpuError code = ANNULUS_GPU(GetDeviceCount)(&count);
  return code == ANNULUS_GPU(Success) ? std::pair(count, "no device")
                                      : std::pair(0, ANNULUS_GPU(GetErrorString)(code));
#else
  return {0, ""};
#endif
}

bool is_threads(std::string_view text) {
  return parse_number<int>(text).value_or(0) > 0;
}

bool is_gpu(std::string_view text) {
  const int id = parse_number<int>(text).value_or(-1), gpus = devices().first;
  return id >= 0 && (gpus == 0 || id < gpus);
}

bool is_list_of_gpus(std::string_view text) {
  const std::size_t comma = text.find(',');
  if (!is_gpu(text.substr(0, comma))) return false;
  return comma == std::string_view::npos || is_list_of_gpus(text.substr(comma + 1));
}

bool is_map(std::string_view text) {
  return text == "mpi_rank" || text == "random";
}

bool is_truth(std::string_view text) {
  constexpr std::array known{"true", "yes", "1", "false", "no", "0"};
  return std::ranges::any_of(known, [word = std::string(text)](const char* other) {
    return ::strcasecmp(word.c_str(), other) == 0;
  });
}

/// Kokkos goes on without a tool that it cannot load.
void check_tool(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return;
  const std::string all(text), file = all.substr(0, all.find(';'));
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    fail("{}='{}' cannot be loaded ({}): correct or unset it", name, text, ::dlerror());
}

/// Throws Error that names the variable where Kokkos would end the process for a value of KOKKOS_*, or read
/// it as something else.
void check_kokkos_variables() {
  struct Rule {
    const char* name;
    bool (*holds)(std::string_view);
    const char* what;
  };
  constexpr const char* truth = "true or false";
  for (const Rule& rule :
       {Rule{"KOKKOS_NUM_THREADS", is_threads, "a positive number of threads"},
        Rule{"KOKKOS_DEVICE_ID", is_gpu, "the number of a GPU"},
        Rule{"KOKKOS_VISIBLE_DEVICES", is_list_of_gpus, "a list of numbers of GPUs (0,1)"},
        Rule{"KOKKOS_MAP_DEVICE_ID_BY", is_map, "mpi_rank or random"},
        Rule{"KOKKOS_DISABLE_WARNINGS", is_truth, truth}, Rule{"KOKKOS_PRINT_CONFIGURATION", is_truth, truth},
        Rule{"KOKKOS_TUNE_INTERNALS", is_truth, truth}}) {
    const char* const text = std::getenv(rule.name);
    require(text == nullptr || rule.holds(text), "{}='{}' is not {}: correct or unset it", rule.name,
            text == nullptr ? "" : text, rule.what);
  }
  const char *const tools = std::getenv("KOKKOS_TOOLS_LIBS"), *const old =
                                                                  std::getenv("KOKKOS_PROFILE_LIBRARY");
  require(tools == nullptr || old == nullptr || std::string_view(tools) == old,
          "KOKKOS_TOOLS_LIBS='{}' and its old name KOKKOS_PROFILE_LIBRARY='{}' differ: unset one of them",
          tools == nullptr ? "" : tools, old == nullptr ? "" : old);
  for (const char* name : {"KOKKOS_TOOLS_LIBS", "KOKKOS_PROFILE_LIBRARY"}) check_tool(name);
}

}  // namespace

bool finds_device() {
#ifdef ANNULUS_GPU_RUNTIME
  return devices().first > 0;
#else
  return true;
#endif
}

void require_device() {
#ifdef ANNULUS_GPU_RUNTIME
  const auto [count, why] = devices();
  require(count > 0,
          "this program was built for {} GPUs and finds none ({}): use a machine with a GPU and its "
          "driver, or the build of the preset cpu",
          ANNULUS_GPU_VENDOR, why);
#endif
}

Kokkos::InitializationSettings kokkos_settings(int ranks_sharing_cores,
                                               const std::function<void(const std::string&)>& warn) {
  check_kokkos_variables();
  const int wanted = host_threads(ranks_sharing_cores),
            granted = granted_threads(std::min(wanted, most_host_threads));
  if (granted < wanted && warn)
    warn(fmt::format("each rank computes with {} of {} threads: {}", granted, wanted,
                     granted == most_host_threads
                         ? "Kokkos has room for no more; several ranks use all cores"
                         : "OpenMP grants no more (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS)"));
  Kokkos::InitializationSettings settings;
  settings.set_num_threads(granted);  // over KOKKOS_NUM_THREADS
  settings.set_disable_warnings(true);
  return settings;
}

}  // namespace annulus
