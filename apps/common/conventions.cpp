#include "common/conventions.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string_view>

#include <annulus/base/printable.hpp>
#include <annulus/base/version.hpp>
#include <annulus/config/nearest.hpp>

namespace annulus::app {
namespace {

/// What other programs, or earlier versions, call an option of ours.
struct OptionAlias {
  std::string_view name, option;
};

constexpr auto option_aliases = std::to_array<OptionAlias>({{"seq-len", "tokens"},
                                                            {"seqlen", "tokens"},
                                                            {"seq-length", "tokens"},
                                                            {"sequence-length", "tokens"},
                                                            {"num-heads", "heads"},
                                                            {"num-kv-heads", "kv-heads"},
                                                            {"batch-size", "batch"},
                                                            {"precision", "dtype"},
                                                            {"world-size", "ranks"},
                                                            {"nproc", "ranks"},
                                                            {"nproc-per-node", "ranks-per-node"},
                                                            {"iters", "repetitions"},
                                                            {"iterations", "repetitions"},
                                                            {"out", "output"},
                                                            {"output-dir", "out"},
                                                            {"topology", "cluster"},
                                                            {"stall-limit", "stall-timeout"},
                                                            {"nccl-blocks", "max-ctas"},
                                                            {"no-stand-in", "real-kernels"},
                                                            {"least-bytes", "min-bytes"},
                                                            {"most-bytes", "max-bytes"}});

/// "did you mean --tokens?", for an option of `command` that `text` may stand for; empty where none is near.
std::string suggested_option(const CLI::App& command, std::string_view text) {
  if (!text.starts_with("--")) return "";
  const std::string_view name = text.substr(2, text.find('=') - 2);
  std::string best;
  std::size_t least = 0;
  const auto compare = [&](std::string_view known, const std::string& option) {
    const std::size_t edits = config::edit_distance(name, known);
    if (!config::is_near(edits, name) || (!best.empty() && edits >= least)) return;
    best = option, least = edits;
  };
  for (const CLI::Option* const option : command.get_options())
    for (const std::string& known : option->get_lnames()) compare(known, known);
  for (const auto& [known, option] : option_aliases)
    if (command.get_option_no_throw(fmt::format("--{}", option)) != nullptr)
      compare(known, std::string(option));
  if (!best.empty()) return fmt::format("did you mean --{}?\n", best);
  if (command.get_option_no_throw("--set") != nullptr)
    return "keys of the configuration are given as --set section.key=value\n";
  return "";
}

std::string failure_message(const CLI::App* app, const CLI::Error& error) {
  const auto commands = app->get_subcommands();
  const CLI::App& command = commands.empty() ? *app : *commands.back();
  std::string text = printable_message(error.what()) + "\n";
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    for (const std::string& extra : app->remaining(true)) {
      const std::string suggestion = suggested_option(command, extra);
      if (!suggestion.empty()) {
        text += suggestion;
        break;
      }
    }
  }
  const std::string subcommand = commands.empty() ? "" : command.get_name() + " ";
  return text + fmt::format("{} {}--help explains\n", app->get_name(), subcommand);
}

}  // namespace

void add_conventions(CLI::App& app, const std::string& name) {
  app.name(name);
  app.set_version_flag("--version", fmt::format("{} {} ({})", name, version(), git_hash()));
  app.failure_message(failure_message);
}

}  // namespace annulus::app
