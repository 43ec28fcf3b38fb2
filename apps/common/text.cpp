#include "common/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace annulus::app {

std::string table_text(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<std::size_t> widths(rows.front().size());
  const auto is_free = [&](const auto& row, std::size_t i) {
    return row.size() < widths.size() && i + 1 == row.size();
  };
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i)
      if (!is_free(row, i)) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::size_t width = is_free(row, i) ? 0 : widths[i];
      text += i == 0 ? "" : "  ";
      text += i < left ? fmt::format("{:<{}}", row[i], width) : fmt::format("{:>{}}", row[i], width);
    }
    text += '\n';
  }
  return text;
}

std::string shell_word(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+=:,@%").find(char(c)) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, plain)) return text;
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
