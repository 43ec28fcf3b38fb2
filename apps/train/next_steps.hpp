#pragma once

#include <string>

namespace annulus::app {

/// A command line, ready to be pasted, that starts a program of Annulus on `ranks` ranks as `launcher` does.
std::string launch_command(int ranks, const std::string& program);

/// True when `program` lies beside this one.
bool has_program(const std::string& program);

/// How a corpus of one's own is trained on.
std::string own_text_command();

}  // namespace annulus::app
