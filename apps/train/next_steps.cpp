#include "next_steps.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "common/process.hpp"
#include "common/text.hpp"

namespace annulus::app {

namespace {

std::filesystem::path program_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : program.parent_path();
}

}  // namespace

std::string launch_command(int ranks, const std::string& program) {
  return fmt::format("{} {}", launcher(ranks),
                     driver().empty() ? shell_word((program_folder() / program).string()) : program);
}

bool has_program(const std::string& program) {
  std::error_code error;
  return std::filesystem::exists(program_folder() / program, error);
}

std::string own_text_command() {
  if (const std::string name = driver(); !name.empty()) return name + " demo --text FOLDER";
  return fmt::format("{} pack --out SHARDS FOLDER, then --set data.shards=SHARDS",
                     shell_word((program_folder() / "annulus-tokens").string()));
}

}  // namespace annulus::app
