#include "common/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string_view>

namespace annulus::app {

std::string shell_word(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+=:,@%").find(char(c)) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "'";
  for (const char c : text) c == '\'' ? quoted += "'\\''" : quoted += c;
  return quoted + "'";
}

BinaryUnit binary_unit(std::int64_t bytes) {
  constexpr std::array<std::string_view, 4> names = {"KiB", "MiB", "GiB", "TiB"};
  BinaryUnit unit{names.front(), 1024};
  for (std::size_t i = 1; i < names.size() && static_cast<double>(bytes) >= 1024 * unit.bytes; ++i)
    unit = {names[i], 1024 * unit.bytes};
  return unit;
}

std::string binary_text(std::int64_t bytes) {
  const BinaryUnit unit = binary_unit(bytes);
  return fmt::format("{:.2f} {}", static_cast<double>(bytes) / unit.bytes, unit.name);
}

}  // namespace annulus::app
