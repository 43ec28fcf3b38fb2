#include "base/kokkos/execution/processor.hpp"

#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>
#include <array>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "base/kokkos/gpu_runtime.hpp"

namespace annulus {

std::string cpu_instruction_sets() {
  std::ifstream file("/proc/cpuinfo");
  return cpu_instruction_sets(std::string(std::istreambuf_iterator<char>(file), {}));
}

std::string cpu_instruction_sets(std::string_view cpuinfo) {
  // What decides about the arithmetic of kernels and BLAS. The other flags tell of security and
  // virtualization, and change with the operating system.
  constexpr std::array<std::string_view, 12> arithmetic = {"sse4", "avx", "fma",  "f16c", "amx",  "asimd",
                                                           "sve",  "sme", "bf16", "i8mm", "fphp", "fp16"};
  std::istringstream lines{std::string(cpuinfo)};
  std::set<std::string> found;
  for (std::string line; found.empty() && std::getline(lines, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;)
      for (const std::string_view prefix : arithmetic)
        if (word.starts_with(prefix)) found.insert(word);
  }
  return found.empty() ? "unknown" : fmt::format("{}", fmt::join(found, " "));
}

std::string gpu_model() {
#ifdef ANNULUS_GPU_RUNTIME
  return gpu_name();
#else
  return "";
#endif
}

}  // namespace annulus
