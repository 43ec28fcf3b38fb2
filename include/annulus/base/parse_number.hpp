#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace annulus {

/// The number that the whole of `text` spells in decimal digits; nothing where it spells none, or one that
/// Number cannot hold.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end) return std::nullopt;
  return value;
}

}  // namespace annulus
