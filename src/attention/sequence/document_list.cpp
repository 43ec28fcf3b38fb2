#include "attention/sequence/document_list.hpp"

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/parse_number.hpp"
#include "base/printable.hpp"

namespace annulus {

namespace {

/// Without blanks at both ends, and a comment.
std::string_view content_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  constexpr std::string_view blanks = " \t\r";
  const std::size_t begin = line.find_first_not_of(blanks);
  if (begin == line.npos) return {};
  return line.substr(begin, line.find_last_not_of(blanks) - begin + 1);
}

}  // namespace

DocumentList read_document_list(const std::string& file, std::string_view field) {
  DocumentList list;
  try {
    LineReader lines(file, kinds::document_list);
    for (std::string line; lines.next(line);) {
      const std::string_view text = content_of(line);
      if (text.empty()) continue;
      const auto length = parse_number<std::int64_t>(text);
      require(length && *length >= 1 && *length <= Mask::max_tokens - list.tokens,
              "'{}', line {}: '{}' is no length of a document: give tokens, from 1 on, {} in all at most",
              file, lines.number(), printable(text), Mask::max_tokens);
      list.starts.push_back(list.tokens);
      list.tokens += *length;
    }
  } catch (const Error& error) {
    fail("{}: {}", field, error.what());
  }
  require(!list.starts.empty(), "{}: '{}' has no documents: give the length of each on a line of its own",
          field, file);
  return list;
}

}  // namespace annulus
