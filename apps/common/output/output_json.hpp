#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace annulus::app {

/// The text of an output file, with its "format_version" (base/config/output_format.hpp).
std::string output_text(nlohmann::json output);

/// Writes that text atomically; nothing where `file` is empty.
void write_output(const std::filesystem::path& file, nlohmann::json output);

/// What tells outputs apart: "program", "version" and "git_hash".
nlohmann::json output_head(const char* program);

}  // namespace annulus::app
