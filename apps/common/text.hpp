#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::app {

/// Rows as columns two spaces apart: the first `left` of them to the left, the others to the right. The last
/// cell of a row that is shorter than the first row may be as long as it likes.
std::string table_text(const std::vector<std::vector<std::string>>& rows, std::size_t left = 1);

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
