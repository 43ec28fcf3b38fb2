#include "cluster/machine/machine.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace annulus::machine {

std::string_view name_of(PathType path) {
  constexpr std::array<std::string_view, 6> names = {"PIX", "PXB", "PHB", "NODE", "SOCK", "SYS"};
  return names[static_cast<std::size_t>(path)];
}

int Machine::hardware_threads() const {
  std::size_t sum = 0;
  for (const Core& core : cores) sum += core.cpus.size();
  return static_cast<int>(sum);
}

std::string list_text(std::vector<int> numbers) {
  std::ranges::sort(numbers);
  std::vector<std::string> resources;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    resources.push_back(end - i == 1 ? fmt::to_string(numbers[i])
                                     : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(resources, ","));
}

}  // namespace annulus::machine
