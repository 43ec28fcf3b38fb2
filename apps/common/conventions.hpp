#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>

namespace annulus::app {

/// The key of the configuration that an unknown option may stand for, to be given by --set, and what is to be
/// said of it; empty where there is none.
using KeyOfOption = std::function<std::string(std::string_view option)>;

/// What all programs have alike: --version prints "NAME VERSION (GIT HASH)", and the error about an unknown
/// option or subcommand names the known one that may be meant.
void add_conventions(CLI::App& app, const std::string& name, const KeyOfOption& key_of_option = {});

/// Options that take numbers of `least` or more alone: 0 or 1. CLI11's own checks end the range in the error
/// at the largest double, in 309 digits.
CLI::Validator at_least(int least);

}  // namespace annulus::app
