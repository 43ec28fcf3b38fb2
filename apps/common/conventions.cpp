#include "common/conventions.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <vector>

#include <annulus/base/version.hpp>

#include "base/nearest.hpp"
#include "base/printable.hpp"

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
                                                            {"output", "out"},
                                                            {"output-dir", "out"},
                                                            {"outdir", "out"},
                                                            {"topology", "cluster"},
                                                            {"stall-limit", "stall-timeout"},
                                                            {"nccl-blocks", "max-ctas"},
                                                            {"nccl-multicast", "nvlink-multicast"},
                                                            {"no-stand-in", "real-kernels"},
                                                            {"least-bytes", "min-bytes"},
                                                            {"most-bytes", "max-bytes"}});

/// "did you mean --tokens?", for an option of `command` that `text` may stand for; empty where none is near.
std::string suggested_option(const CLI::App& command, std::string_view text, const KeyOfOption& key_of) {
  const std::string_view name = text.substr(2, text.find('=') - 2);
  std::string best;
  std::size_t least = 0;
  const auto compare = [&](std::string_view known, const std::string& option) {
    const std::size_t edits = edit_distance(name, known);
    if (!is_near(edits, name) || (!best.empty() && edits >= least)) return;
    best = option, least = edits;
  };
  for (const CLI::Option* const option : command.get_options())
    for (const std::string& known : option->get_lnames()) compare(known, known);
  for (const auto& [known, option] : option_aliases)
    if (command.get_option_no_throw(fmt::format("--{}", option)) != nullptr)
      compare(known, std::string(option));
  if (!best.empty()) return fmt::format("did you mean --{}?", best);
  if (command.get_option_no_throw("--set") == nullptr) return "";
  if (const std::string key = key_of ? key_of(name) : ""; !key.empty())
    return fmt::format("did you mean --set {}?", key);
  return "keys of the configuration are given as --set section.key=value";
}

/// The first unknown option among the words that `app` did not expect for which there is something to say.
std::string unknown_option(const CLI::App& app, const CLI::App& command, const KeyOfOption& key_of) {
  for (const std::string& extra : app.remaining(true)) {
    if (!extra.starts_with("--")) continue;
    if (const std::string suggestion = suggested_option(command, extra, key_of); !suggestion.empty())
      return fmt::format("{}: {}\n", printable(extra.substr(0, extra.find('='))), suggestion);
  }
  return "";
}

/// Where a subcommand is missing, the word that stands in its place, and what it may stand for.
std::string unknown_command(const CLI::App& app) {
  std::vector<std::string_view> names;
  for (const CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.emplace_back(command->get_name());
  const std::vector<std::string> extras = app.remaining();
  if (names.empty() || extras.empty() || extras.front().starts_with('-')) return "";
  return fmt::format("there is no command '{}'; {}known are {}\n", printable(extras.front()),
                     did_you_mean(extras.front(), names), fmt::join(names, ", "));
}

std::string failure_message(const CLI::App* app, const CLI::Error& error, const KeyOfOption& key_of) {
  const auto commands = app->get_subcommands();
  const CLI::App& command = commands.empty() ? *app : *commands.back();
  std::string text = commands.empty() ? unknown_command(*app) : "";
  if (text.empty()) text = printable_message(error.what()) + "\n" + unknown_option(*app, command, key_of);
  const std::string subcommand = commands.empty() ? "" : command.get_name() + " ";
  return text + fmt::format("{} {}--help explains\n", app->get_name(), subcommand);
}

constexpr auto options_of_written_files =
    std::to_array<std::string_view>({"--json", "--csv", "--html", "--dump", "--output", "--hostfile"});

bool is_written(const CLI::Option& option) {
  return option.get_expected_max() > 0 &&
         std::ranges::find(options_of_written_files, option.get_name()) != options_of_written_files.end();
}

/// Whether two texts name one file, of which none need be there.
bool is_same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // of what is not there
  const auto place = [&](const std::string& text) {
    return fs::weakly_canonical(fs::absolute(text, ignored), ignored);  // "f" and "./f" are not there yet
  };
  return place(a) == place(b) || fs::equivalent(a, b, ignored);
}

/// A file that is there: other values may be any text.
bool is_file(const std::string& text) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(text, ignored);
}

}  // namespace

std::string without_zeros_in_front(const std::string& text) {
  const std::size_t first = text.find_first_not_of("+-");
  const bool octal = first < text.size() && text[first] == '0' && first + 1 < text.size() &&
                     text[first + 1] >= '0' && text[first + 1] <= '9';
  return octal ? fmt::format("'{}' begins with 0: leave zeros in front of a number out", printable(text))
               : "";
}

void check_given(const CLI::App& app) {
  for (const CLI::App* const command : app.get_subcommands()) check_given(*command);
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_expected_max() == 0) continue;
    const std::string name = option->get_name();
    for (const std::string& text : option->results()) {
      if (text.empty() && !option->get_lnames().empty())
        throw CLI::ValidationError(name, "its value is empty: give one, or leave the option out");
      const bool is_whole_number = option->get_type_name().starts_with("INT") ||  //
                                   option->get_type_name().starts_with("UINT");
      if (const std::string problem = is_whole_number ? without_zeros_in_front(text) : ""; !problem.empty())
        throw CLI::ValidationError(name, problem);
      if (!is_written(*option) || text == "-") continue;
      for (const CLI::Option* const other : app.get_options())
        for (const std::string& of_other : other->results())
          if (other != option && (is_written(*other) || (name != "--output" && is_file(of_other))) &&
              is_same_file(text, of_other))
            throw CLI::ValidationError(name, fmt::format("'{}' is the file of {}, too: give it another name",
                                                         printable(text), other->get_name()));
    }
  }
}

void add_conventions(CLI::App& app, const std::string& name, const KeyOfOption& key_of_option) {
  app.name(name);
  app.set_version_flag("--version", fmt::format("{} {} ({})", name, version(), git_hash()));
  app.failure_message([key_of_option](const CLI::App* failed, const CLI::Error& error) {
    return failure_message(failed, error, key_of_option);
  });
}

CLI::Validator at_least(int least) {
  return CLI::Validator(
      [least](const std::string& text) {
        double number = 0;
        if (CLI::detail::lexical_cast(text, number) && number >= least && std::isfinite(number))
          return std::string();
        return fmt::format("'{}': give a {}number of {} or more", text, std::isinf(number) ? "finite " : "",
                           least);
      },
      least == 0 ? "NONNEGATIVE" : "POSITIVE");
}

}  // namespace annulus::app
