#pragma once

#include <exception>
#include <string>

/// What a process owes those who started it, whatever the program does.
namespace annulus::app {

/// To be called before anything else. Limits of file sizes and readers that go away become errors of the
/// write, as full disks are. Standard streams that are closed become ones that say so: the next file that is
/// opened would take their place, and what is printed would go into it.
void prepare_process();

/// Writes out what was printed. Gives why that is not possible, also for what was printed before; nothing
/// where all is well.
std::string output_problem();

/// Writes a line to standard error. Nothing where its reader has gone away, for which fmt::print would throw.
void say(const std::string& line);

/// What is wrong, where `error` has left the program: of a print that failed, that the output could not be
/// written.
std::string problem_of(const std::exception& error);

/// The driver script that started this process, as a shell takes its name (it tells it in ANNULUS_DRIVER);
/// empty where none did.
std::string driver();

/// What starts programs on `ranks` ranks the way this process was started: the driver script, srun, or mpirun
/// with what Open MPI wants to be told when ranks outnumber cores or root starts them.
std::string launcher(int ranks);

/// Ends the process as one without handlers would have ended where the reader of its output has gone away:
/// silently, by SIGPIPE. Returns where that is not what happened.
void end_with_reader();

}  // namespace annulus::app
