#pragma once

#include <cstdint>
#include <string>

namespace annulus {

/// A duration in the unit that fits: "12.31 ms", "2.310 s", "3.401 min", "13.52 h", "4.826 d".
std::string duration_text(double seconds);

/// "4096 bytes", "12.50 GB".
std::string bytes_text(std::int64_t bytes);

/// The value to 4 significant digits: more is noise in what was measured.
double four_digits(double value);

}  // namespace annulus
