#include "common/command_line.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>

#include "attention/comm/agreement.hpp"
#include "common/arguments.hpp"

namespace annulus::app {

std::optional<int> parse(CLI::App& app, int argc, char** argv, const comm::MpiEnvironment& mpi,
                         std::span<const std::string_view> files) {
  constexpr std::string_view remedy = "start every rank with the same arguments";
  std::ostringstream out, err;
  std::optional<int> status;
  comm::Facts facts = comm::program_facts(), options;
  try {
    Arguments arguments(app, argc, argv);
    app.parse(arguments.count(), arguments.values());
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
