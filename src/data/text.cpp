#include "text.hpp"

#include <cstddef>

namespace annulus::data {

namespace {

/// Bytes of the UTF-8 sequence that starts with `first`, and the range of its second byte, which rules out
/// overlong forms, surrogates and what lies beyond U+10FFFF (RFC 3629, §4). length 0: no sequence starts so.
struct Lead {
  std::size_t length;
  unsigned char low, high;
};

Lead lead(unsigned char first) {
  if (first == 0) return {0, 0, 0};
  if (first < 0x80) return {1, 0, 0};
  if (first < 0xc2) return {0, 0, 0};
  if (first < 0xe0) return {2, 0x80, 0xbf};
  if (first < 0xf0) {
    const unsigned char low = first == 0xe0 ? 0xa0 : 0x80, high = first == 0xed ? 0x9f : 0xbf;
    return {3, low, high};
  }
  if (first < 0xf5) {
    const unsigned char low = first == 0xf0 ? 0x90 : 0x80, high = first == 0xf4 ? 0x8f : 0xbf;
    return {4, low, high};
  }
  return {0, 0, 0};
}

}  // namespace

bool is_text(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const Lead sequence = lead(byte(i));
    if (sequence.length == 0 || i + sequence.length > text.size()) return false;
    if (sequence.length > 1 && (byte(i + 1) < sequence.low || byte(i + 1) > sequence.high)) return false;
    for (std::size_t k = 2; k < sequence.length; ++k) {
      if ((byte(i + k) & 0xc0u) != 0x80u) return false;
    }
    i += sequence.length;
  }
  return true;
}

}  // namespace annulus::data
