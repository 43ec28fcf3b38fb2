#pragma once

#include <functional>

#include <annulus/attention/comm/mpi.hpp>

namespace annulus::app {

/// What every program's main does. Starts MPI (one rank when there is no mpirun), then Kokkos with this
/// rank's share of the cores; logs go to stderr, warnings and errors alone on ranks other than 0. Runs `body`
/// and returns what it returns. An exception that leaves `body` is caught here and nowhere else: the rank and
/// the message are written to stderr and all ranks end with exit status 1. So they do where what was printed
/// could not be written to standard output; a single rank whose reader has gone away ends by SIGPIPE.
int run_main(int argc, char** argv, const std::function<int(comm::MpiEnvironment&, int, char**)>& body);

}  // namespace annulus::app
