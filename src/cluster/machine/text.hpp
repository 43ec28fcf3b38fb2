#pragma once

#include <fmt/format.h>

#include <string>

namespace annulus::machine {

/// "400 Gbit/s"; "unknown rate" for 0.
inline std::string bits_text(double rate) {
  return rate > 0 ? fmt::format("{:g} Gbit/s", rate / 1e9) : "unknown rate";
}

}  // namespace annulus::machine
