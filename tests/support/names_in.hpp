#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace annulus::test {

/// Names of what a folder holds, in order; nothing where there is no folder.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  if (std::filesystem::exists(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace annulus::test
