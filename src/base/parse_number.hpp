#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace annulus {

/// Takes the number in decimal digits with which `text` begins off it; nothing where it begins with none, or
/// with one that Number cannot hold.
template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  Number value{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return value;
}

/// The number that the whole of `text` is.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  const std::optional<Number> value = take_number<Number>(text);
  return text.empty() ? value : std::nullopt;
}

}  // namespace annulus
