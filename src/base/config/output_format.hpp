#pragma once

namespace annulus::config {

/// "format_version" of metrics and of what programs write with --json. Files with other numbers have fields
/// of other names.
inline constexpr int output_format_version = 3;

}  // namespace annulus::config
