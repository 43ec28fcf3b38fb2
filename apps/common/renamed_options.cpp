#include "common/renamed_options.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include <annulus/config/renamed.hpp>

namespace annulus::app {
namespace {

/// The subcommand that the arguments name, or the program itself.
const CLI::App& command_of(const CLI::App& app, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    for (const CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; }))
      if (command->get_name() == text) return *command;
  }
  return app;
}

}  // namespace

Arguments::Arguments(const CLI::App& app, int argc, char** argv) : texts_(argv, argv + argc) {
  const CLI::App& command = command_of(app, texts_);
  const std::string program = std::filesystem::path(texts_.empty() ? "" : texts_.front()).filename();
  std::set<std::string, std::less<>> given;
  std::set<std::pair<std::string, std::string>> old_names;  // with their new ones
  for (std::size_t i = 1; i < texts_.size() && texts_[i] != "--"; ++i) {
    std::string& text = texts_[i];
    const std::string name = text.substr(0, text.find('='));
    given.insert(name);
    const auto now = config::new_name(config::Names::options, name);
    if (!now || command.get_option_no_throw(std::string(*now)) == nullptr) continue;
    config::warn_old_name(program, name, *now);
    old_names.emplace(name, *now);
    text.replace(0, name.size(), *now);
  }
  for (const auto& [before, now] : old_names) {
    if (given.contains(now))
      throw CLI::ValidationError(
          fmt::format("{} is the old name of {}, and both are given: keep {} alone", before, now, now));
  }
  for (std::string& text : texts_) pointers_.push_back(text.data());
  pointers_.push_back(nullptr);
}

}  // namespace annulus::app
