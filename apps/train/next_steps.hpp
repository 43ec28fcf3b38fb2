#pragma once

#include <string>

namespace annulus::app {

/// A command line, ready to be pasted, that starts a program of Annulus on `ranks` ranks the way this process
/// was started: through the driver script (which tells its name in ANNULUS_DRIVER), or through mpirun, with
/// what Open MPI wants to be told when ranks outnumber cores or root starts them.
std::string launch_command(int ranks, const std::string& program);

/// True when `program` lies beside this one.
bool has_program(const std::string& program);

/// How a corpus of one's own is trained on.
std::string own_text_command();

}  // namespace annulus::app
