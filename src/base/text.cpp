#include "base/text.hpp"

#include <cstddef>

namespace annulus {

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

std::size_t text_prefix(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t i = 0;
  while (i < text.size()) {
    const Lead sequence = lead(byte(i));
    if (sequence.length == 0 || i + sequence.length > text.size()) break;
    if (sequence.length > 1 && (byte(i + 1) < sequence.low || byte(i + 1) > sequence.high)) break;
    std::size_t k = 2;
    while (k < sequence.length && (byte(i + k) & 0xc0u) == 0x80u) ++k;
    if (k < sequence.length) break;
    i += sequence.length;
  }
  return i;
}

bool is_text(std::string_view text) {
  return text_prefix(text) == text.size();
}

}  // namespace annulus
