#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

#include "training/io/crc32.hpp"

namespace annulus::checkpoint {

/// The first line of a manifest, which is the beginning of its JSON object: the CRC-32 of what follows it.
inline std::string checksum_line(std::string_view rest) {
  return fmt::format("{{\"crc32\":{:10},\n", io::crc32_of(std::span<const char>(rest)));
}

/// A JSON object that is not empty, as text, with that line.
inline std::string with_checksum_line(std::string_view object) {
  const std::string rest = std::string(object.substr(1)) + "\n";
  return checksum_line(rest) + rest;
}

/// Whether a text has the line and the line is right.
inline bool has_checksum_line(std::string_view text) {
  const std::size_t line = text.find('\n');
  return line != text.npos && text.substr(0, line + 1) == checksum_line(text.substr(line + 1));
}

}  // namespace annulus::checkpoint
