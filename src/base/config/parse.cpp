#include "base/config/parse.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>

#include "base/file.hpp"

namespace annulus::config {

namespace {

/// Takes the TOML text between quotes off `rest`, which begins with one; a text without end up to the end of
/// its line, behind which toml++ does not read on.
void skip_quoted(std::string_view& rest) {
  const char quote = rest.front();
  const std::string_view three = quote == '"' ? "\"\"\"" : "'''";
  const bool many_lines = rest.starts_with(three);
  std::size_t at = many_lines ? 3 : 1;
  for (; at < rest.size(); ++at) {
    if (rest[at] == '\\' && quote == '"')
      ++at;
    else if (many_lines ? rest.substr(at).starts_with(three) : rest[at] == quote || rest[at] == '\n')
      break;
  }
  rest.remove_prefix(std::min(rest.size(), at + (many_lines ? 3 : 1)));
  while (many_lines && rest.starts_with(quote))
    rest.remove_prefix(1);  // a text may end with quotes of its own
}

}  // namespace

void require_flat(std::string_view text, std::string_view origin) {
  const std::string_view all = text;
  std::vector<int> dots_around;  // of the keys whose values the open brackets are in
  int dots = 0, depth = 0;       // of the key or number here; of all
  const auto end_key = [&] { depth -= std::exchange(dots, 0); };
  while (!text.empty()) {
    const char c = text.front();
    if (c == '"' || c == '\'') {
      skip_quoted(text);
      continue;
    }
    if (c == '#') {
      text.remove_prefix(std::min(text.find('\n'), text.size()));
      continue;
    }
    if (c == '\n' || c == ',') end_key();
    if (c == '[' || c == '{') dots_around.push_back(std::exchange(dots, 0));
    if ((c == ']' || c == '}') && !dots_around.empty()) {
      end_key();
      dots = dots_around.back();
      dots_around.pop_back();
      --depth;
    }
    if (c == '.') ++dots;
    if (c == '.' || c == '[' || c == '{') ++depth;
    if (depth > deepest_nesting)
      fail("{}:{}: keys and values are nested more than {} deep: is this the right file?", origin,
           1 + std::count(all.begin(), all.end() - std::ssize(text), '\n'), deepest_nesting);
    text.remove_prefix(1);
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
  return parse(read_text(file, kinds::toml), file.string(), advice);
}

}  // namespace annulus::config
