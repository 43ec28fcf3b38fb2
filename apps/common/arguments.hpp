#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace annulus::app {

/// The arguments of a program as its CLI::App takes them: where it has an option --set, `--set A=1 B=2` as
/// `--set A=1 --set B=2`, so that positional arguments may follow.
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
