#include "common/run_commands.hpp"

#include <cstdio>
#include <exception>
#include <sstream>

#include "common/conventions.hpp"
#include "common/process.hpp"

namespace annulus::app {

int run_program(CLI::App& app, const Command& command, int argc, char** argv, int error_status) {
  prepare_process();
  int status = 0;
  const auto failed = [&](const std::string& problem) {
    end_with_reader();
    std::fflush(stdout);  // what was printed before stands before
    say(app.get_name() + ": " + problem);
    status = error_status;
  };
  try {
    app.parse(argc, argv);
    check_given(app);
    status = command();
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    status = app.exit(error, out, err) == 0 ? 0 : error_status;
    std::fputs(out.str().c_str(), stdout);
    std::fputs(err.str().c_str(), stderr);
  } catch (const std::exception& error) {
    failed(problem_of(error));
    return status;
  }
  if (const std::string problem = output_problem(); !problem.empty()) failed(problem);
  return status;
}

int run_commands(CLI::App& app, const Command& command, int argc, char** argv) {
  add_conventions(app, app.get_name());
  app.require_subcommand(1);
  return run_program(app, command, argc, argv);
}

}  // namespace annulus::app
