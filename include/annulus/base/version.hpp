#pragma once

#include <string_view>

namespace annulus {

/// "0.1.0"
std::string_view version();

/// Short git hash of the sources that the library was built from, with "-dirty" when they had changed, or
/// "unknown".
std::string_view git_hash();

}  // namespace annulus
