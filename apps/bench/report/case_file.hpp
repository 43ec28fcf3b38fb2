#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace annulus::bench {

/// What `annulus-bench attention --json` wrote: of a sweep or of a single case, with the keys of this
/// version.
struct CaseFile {
  std::string git_hash;  ///< of the build that wrote it
  std::vector<nlohmann::json> cases, unsupported;
};

/// Throws Error that names the file when it is something else.
CaseFile read_case_file(const std::filesystem::path& file);

}  // namespace annulus::bench
