#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace annulus::app {

/// The arguments of a program, with its options, and those of its subcommand, under their new names
/// (config/renamed.hpp); each old name warns. Throws CLI::ValidationError where an option is given under
/// both.
class Arguments {
 public:
  Arguments(const CLI::App& app, int argc, char** argv);

  int count() const { return static_cast<int>(pointers_.size()) - 1; }
  /// Ends with a null pointer; lives as long as this.
  char** values() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

}  // namespace annulus::app
