#include "base/printable.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "base/text.hpp"

namespace annulus {

namespace {

bool commands_terminals(std::uint32_t point) {
  return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x200e || point == 0x200f ||
         (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069);
}

std::string escaped(std::string_view text, std::string_view line_end) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    std::uint32_t point = 0;
    const std::size_t length = take_code_point(text, point);
    const std::size_t taken = length == 0 ? 1 : length;
    if (length == 1 && point == '\n') {
      shown += line_end;
    } else if (length == 0 || commands_terminals(point)) {
      for (const char c : text.substr(0, taken))
        shown += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(c));
    } else {
      shown += text.substr(0, taken);
    }
    text.remove_prefix(taken);
  }
  return shown;
}

}  // namespace

std::string printable(std::string_view text) {
  return escaped(text, "\\n");
}

std::string printable_message(std::string_view text) {
  constexpr std::size_t most = std::size_t{16} << 10, end = std::size_t{4} << 10;
  constexpr const char* indented = "\n    ";
  if (text.size() <= most) return escaped(text, indented);
  // Messages begin with what is wrong and end with what to do: what they quote stands between.
  std::size_t front = most - end, back = text.size() - end;
  const auto inside = [&](std::size_t at) { return (static_cast<std::uint8_t>(text[at]) & 0xc0) == 0x80; };
  while (front > 0 && inside(front)) --front;  // of a character
  while (back < text.size() && inside(back)) ++back;
  return fmt::format("{} [{} bytes are left out] {}", escaped(text.substr(0, front), indented), back - front,
                     escaped(text.substr(back), indented));
}

}  // namespace annulus
