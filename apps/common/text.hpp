#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace annulus::app {

/// `text` as a shell takes it for one word: in quotes where it needs them.
std::string shell_word(const std::string& text);

/// A power of 1024.
struct BinaryUnit {
  std::string_view name;  ///< "MiB"
  double bytes = 1;
};
/// The largest, from KiB on, that `bytes` has at least one of.
BinaryUnit binary_unit(std::int64_t bytes);

/// "12.50 GiB", "3.20 MiB".
std::string binary_text(std::int64_t bytes);

}  // namespace annulus::app
