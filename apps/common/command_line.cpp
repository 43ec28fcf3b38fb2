#include "common/command_line.hpp"

#include <iostream>
#include <sstream>

namespace annulus::app {

std::optional<int> parse(CLI::App& app, int argc, char** argv, int rank) {
  try {
    app.parse(argc, argv);
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

}  // namespace annulus::app
