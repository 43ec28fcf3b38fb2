#include "config/parse.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include <annulus/base/error.hpp>

namespace annulus::config {

void require_flat(std::string_view text, std::string_view origin) {
  // Arrays inside of one another, of which toml++ takes 256, may each have as many.
  constexpr int most_dots = 100;
  int line = 1, dots = 0;
  bool blank = true, comment = false;  // the line so far
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      dots = 0, blank = true, comment = false;
      continue;
    }
    if (blank && c == '#') comment = true;
    blank = blank && (c == ' ' || c == '\t');
    if (c == ',') dots = 0;
    if (c == '.' && !comment && ++dots > most_dots)
      fail("{}:{}: a key or value has more than {} dots: is this the right file?", origin, line, most_dots);
  }
}

toml::table parse(std::string_view text, std::string_view origin, std::string_view advice) {
  require_flat(text, origin);
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    fail("{}:{}: {}{}{}", origin, error.source().begin.line, error.description(), advice.empty() ? "" : "; ",
         advice);
  }
}

toml::table parse_file(const std::filesystem::path& file, std::string_view advice) {
  return parse(read_text(file), file.string(), advice);
}

std::string read_text(const std::filesystem::path& file) {
  constexpr std::size_t most = std::size_t{1} << 24;
  std::error_code ignored;
  require(!std::filesystem::is_directory(file, ignored), "'{}' is a folder: give a TOML file", file.string());
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  require(stream.is_open(), "cannot open '{}': {}: check the path", file.string(), std::strerror(errno));
  std::string text, piece(std::size_t{1} << 16, '\0');
  while (text.size() <= most &&
         (stream.read(piece.data(), static_cast<std::streamsize>(piece.size())), stream.gcount() > 0))
    text.append(piece, 0, static_cast<std::size_t>(stream.gcount()));
  require(!stream.bad(), "cannot read '{}': check the disk", file.string());
  require(text.size() <= most,
          "'{}' has more than {} MiB, which no TOML file of Annulus has: give the right file", file.string(),
          most >> 20);
  return text;
}

}  // namespace annulus::config
