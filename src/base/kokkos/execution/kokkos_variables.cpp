#include "base/kokkos/execution/kokkos_variables.hpp"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/device.hpp>

#include "base/parse_number.hpp"

namespace annulus {

namespace {

bool is_threads(std::string_view text) {
  const auto threads = parse_number<int>(text);
  return threads && *threads > 0;
}

/// In a build for CPUs nobody asks for the GPU.
bool is_gpu(std::string_view text) {
  const auto id = parse_number<int>(text);
  const int gpus = device_count();
  return id && *id >= 0 && (gpus == 0 || *id < gpus);
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

}  // namespace

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

}  // namespace annulus
