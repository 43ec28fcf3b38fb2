#pragma once

#include <string_view>

namespace annulus::data {

/// True when `text` is text: valid UTF-8 (RFC 3629) without a NUL.
bool is_text(std::string_view text);

}  // namespace annulus::data
