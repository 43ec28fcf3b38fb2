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

/// Validator of CLI11 for whole numbers: the library would read "010" as 8. Empty where all is well.
std::string without_zeros_in_front(const std::string& text);

/// What all options have alike, to be called when the command line was parsed: none has an empty text, as of
/// a shell's variable that is not set; whole numbers have no zeros in front; no file that is written (--json,
/// --csv, --html, --dump, --output, --hostfile) is another such file, or one that is read, but for --output,
/// which may improve a file. Throws CLI::ValidationError naming the options.
void check_given(const CLI::App& app);

/// Options that take numbers of `least` or more alone: 0 or 1. CLI11's own checks end the range in the error
/// at the largest double, in 309 digits.
CLI::Validator at_least(int least);

}  // namespace annulus::app
