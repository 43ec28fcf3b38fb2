#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

/// Names that users know by older ones: keys of TOML files, options, kernels of annulus-bench. Old names go
/// on working, each with a warning.
namespace annulus::config {

/// Where a name is used.
enum class Names : std::uint8_t {
  configuration,  ///< annulus-train: TOML file, --set, the configuration that a checkpoint stores
  cluster_file,   ///< docs/formats/cluster.md; "section" or "section.key"
  options,        ///< of all programs, "--name"
  bench_kernels   ///< of annulus-bench kernels
};

struct Renamed {
  Names names = Names::configuration;
  std::string_view before, now;
};

/// All of them. Rows of a cluster file come in the order in which they apply: sections before their keys.
std::span<const Renamed> renamed();

/// The name that has replaced `before`; nothing for a name that is not an old one.
std::optional<std::string_view> new_name(Names names, std::string_view before);

/// Warns that `where` ("run.toml:3", "--set run.stall_limit=60") uses an old name, once per `where` and name.
void warn_old_name(std::string_view where, std::string_view before, std::string_view now);

/// Where these warnings go from now on; stderr where nothing is set. Of many ranks one should speak.
void set_old_name_warnings(std::function<void(const std::string& text)> write);

}  // namespace annulus::config
