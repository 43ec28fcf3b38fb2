#pragma once

#include <fmt/format.h>

/// Lines of the program's log. What formats and writes them is compiled once: spdlog's own functions would be
/// compiled wherever a line is written, with all of the formatter.
namespace annulus::logging {

enum class Level { info, warning, error };

/// Writes a line with the default logger of spdlog.
void write(Level level, fmt::string_view text, fmt::format_args args);

template <class... Args>
void info(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::info, text, fmt::make_format_args(args...));
}

template <class... Args>
void warn(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::warning, text, fmt::make_format_args(args...));
}

template <class... Args>
void error(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::error, text, fmt::make_format_args(args...));
}

}  // namespace annulus::logging
