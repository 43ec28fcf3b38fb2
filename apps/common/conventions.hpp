#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace annulus::app {

/// What all programs have alike: --version prints "NAME VERSION (GIT HASH)", and the error about an unknown
/// option names the known one that may be meant.
void add_conventions(CLI::App& app, const std::string& name);

}  // namespace annulus::app
