#pragma once

#include <cstdint>
#include <string>

namespace annulus::app {

/// "12.3 MB" and the like, in powers of ten.
std::string bytes_text(std::int64_t bytes);

}  // namespace annulus::app
