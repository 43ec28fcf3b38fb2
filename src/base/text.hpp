#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace annulus {

/// Length of the UTF-8 sequence that `text`, which is not empty, begins with, and its code point; 0 where it
/// is none, an overlong form, half a pair or beyond U+10FFFF (RFC 3629, §4).
std::size_t take_code_point(std::string_view text, std::uint32_t& point);

/// Bytes at the front of `text` that are text: whole characters of UTF-8 (RFC 3629) other than NUL.
std::size_t text_prefix(std::string_view text);

/// True when `text` is text: valid UTF-8 (RFC 3629) without a NUL.
bool is_text(std::string_view text);

}  // namespace annulus
