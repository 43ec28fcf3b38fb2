#include "common/command_line.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "attention/comm/agreement.hpp"
#include "common/conventions.hpp"

namespace annulus::app {

namespace {

/// "section.key=value", with or without blanks around the sign.
bool is_setting(std::string_view text) {
  constexpr std::string_view of_keys = "abcdefghijklmnopqrstuvwxyz0123456789_.";
  const std::string_view key = text.substr(0, std::min(text.find('='), text.find(' ')));
  return text.find('=') != text.npos && key.find('.', 1) != key.npos &&
         key.find_first_not_of(of_keys) == key.npos;
}

/// `--set A=1 B=2` as `--set A=1 --set B=2`.
void repeat_set(std::vector<std::string>& texts) {
  bool of_set = false;  // the text before is a value of --set
  for (std::size_t i = 0; i < texts.size() && texts[i] != "--"; ++i) {
    if (texts[i] == "--set") {
      ++i;
      of_set = true;
    } else if (of_set && is_setting(texts[i])) {
      texts.insert(texts.begin() + static_cast<std::ptrdiff_t>(i), "--set");
      ++i;
    } else {
      of_set = texts[i].starts_with("--set=");
    }
  }
}

bool has_set(const CLI::App& app) {
  return app.get_option_no_throw("--set") != nullptr ||
         std::ranges::any_of(app.get_subcommands({}),
                             [](const CLI::App* command) { return has_set(*command); });
}

/// The arguments as CLI::App takes them from the last to the first. `--set A=1 B=2` becomes `--set A=1 --set
/// B=2` where the program has that option, so that positional arguments may follow.
std::vector<std::string> backwards(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> texts(argv + std::min(argc, 1), argv + argc);
  if (has_set(app)) repeat_set(texts);
  std::ranges::reverse(texts);
  return texts;
}

}  // namespace

std::optional<int> parse(CLI::App& app, int argc, char** argv, const comm::MpiEnvironment& mpi,
                         std::span<const std::string_view> files) {
  constexpr std::string_view remedy = "start every rank with the same arguments";
  std::ostringstream out, err;
  std::optional<int> status;
  comm::Facts facts = comm::program_facts(), options;
  try {
    app.parse(backwards(app, argc, argv));
    check_given(app);
    facts.add("the arguments", "understood", remedy);
    for (const CLI::Option* const option : app.get_options())
      if (option->get_expected_max() == 0)
        options.add(option->get_name(), option->count() == 0 ? "not given" : "given", remedy);
    for (const CLI::App* const command : app.get_subcommands()) {
      facts.add("the subcommand", command->get_name(), remedy);
      for (const CLI::Option* const option : command->get_options()) {
        const bool is_file = std::ranges::find(files, option->get_name()) != files.end();
        options.add(option->get_name(),
                    option->count() == 0 ? "not given"
                    : is_file            ? "given"
                                         : fmt::format("{}", fmt::join(option->results(), " ")),
                    remedy);
      }
    }
  } catch (const CLI::ParseError& error) {
    status = app.exit(error, out, err) == 0 ? 0 : 1;
    const std::string problem = error.what();
    facts.add("the arguments",
              *status != 0                           ? problem
              : error.get_name() == "CallForVersion" ? "--version"
                                                     : "--help",
              remedy);
  }
  // A rank that ended here alone would leave the others waiting.
  if (mpi.size() > 1) {
    const auto world = mpi.world(1);
    comm::require_agreement(*world, facts);
    comm::require_agreement(*world, options);
  }
  if (mpi.rank() == 0) {
    std::fputs(out.str().c_str(), stdout);
    std::fputs(err.str().c_str(), stderr);
  }
  return status;
}

}  // namespace annulus::app
