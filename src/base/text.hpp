#pragma once

#include <cstddef>
#include <string_view>

namespace annulus {

/// Bytes at the front of `text` that are text: whole characters of UTF-8 (RFC 3629) other than NUL.
std::size_t text_prefix(std::string_view text);

/// True when `text` is text: valid UTF-8 (RFC 3629) without a NUL.
bool is_text(std::string_view text);

}  // namespace annulus
