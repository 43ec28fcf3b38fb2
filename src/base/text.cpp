#include "base/text.hpp"

namespace annulus {

std::size_t take_code_point(std::string_view text, std::uint32_t& point) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return point = first, 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  point = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3fu);
  }
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  return point < least[length] || point > 0x10ffff || surrogate ? 0 : length;
}

std::size_t text_prefix(std::string_view text) {
  std::size_t i = 0;
  std::uint32_t point = 0;
  while (i < text.size()) {
    const std::size_t length = take_code_point(text.substr(i), point);
    if (length == 0 || point == 0) break;
    i += length;
  }
  return i;
}

bool is_text(std::string_view text) {
  return text_prefix(text) == text.size();
}

}  // namespace annulus
