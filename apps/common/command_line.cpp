#include "common/command_line.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "common/renamed_options.hpp"

namespace annulus::app {

std::optional<int> parse(CLI::App& app, int argc, char** argv, int rank) {
  try {
    Arguments arguments(app, argc, argv);
    app.parse(arguments.count(), arguments.values());
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    const int code = app.exit(error, out, err);
    if (rank == 0) {
      std::cout << out.str();
      std::cerr << err.str();
    }
    return code == 0 ? 0 : 1;
  }
}

comm::Facts command_facts(const CLI::App& command, std::span<const std::string_view> files) {
  comm::Facts facts = comm::program_facts();
  for (const CLI::Option* const option : command.get_options()) {
    const std::string name = option->get_name();
    const bool is_file = std::ranges::find(files, name) != files.end();
    facts.add(name,
              option->count() == 0 ? "not given"
              : is_file            ? "given"
                                   : fmt::format("{}", fmt::join(option->results(), " ")),
              "start every rank with the same arguments");
  }
  return facts;
}

}  // namespace annulus::app
