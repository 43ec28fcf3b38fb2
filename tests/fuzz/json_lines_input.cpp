// JSON lines as annulus-tokens pack reads them (docs/formats/token-shards.md): in one go, and on from each
// document.
#include <annulus/training/data/packer.hpp>

#include "base/text.hpp"
#include "memory_file.hpp"
#include "training/data/packing/inputs.hpp"

namespace {

using namespace annulus;
using data::Document;

std::string text_of(const Document& document) {
  return document.parts.empty() ? std::string() : document.parts.front().text;
}

std::vector<Document> read(std::span<const data::TextInput> files, data::InputPosition start,
                           data::BadLines bad_lines, std::vector<data::InputPosition>& positions) {
  std::vector<Document> documents;
  data::DocumentReader reader(files, start, bad_lines, [](const std::string&) {});
  for (positions.assign(1, start); auto raw = reader.next(); positions.push_back(reader.position())) {
    documents.push_back(data::document_of(*raw, nullptr));
    const bool bad = documents.back().kind == Document::Kind::bad_line;
    // As the packer says it, with the place.
    require(!bad || bad_lines == data::BadLines::skip, "{}, line {}: {}",
            files[static_cast<std::size_t>(raw->start.file)].path.string(), raw->line,
            documents.back().problem);
  }
  return documents;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(data, size);
  const data::TextInput files[] = {{.path = file.path(), .key = "a.jsonl", .bytes = size, .modified = 0}};
  std::vector<data::InputPosition> positions, ignored;
  std::vector<Document> documents;
  bool bad = false;
  const bool read_all =
      fuzz::accepts(file.path(), [&] { documents = read(files, {}, data::BadLines::skip, positions); });
  fuzz::expect(read_all, "bad lines are passed over");
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const Document& document = documents[i];
    bad = bad || document.kind == Document::Kind::bad_line;
    fuzz::expect((document.kind == Document::Kind::text) == document.problem.empty(),
                 "text, or why there is none");
    fuzz::expect(is_text(text_of(document)), "text", text_of(document));
    fuzz::expect(data::begins_as_before(files, positions[i]), "the position of a document");
    if (i > 8) continue;
    const auto rest = read(files, positions[i], data::BadLines::skip, ignored);
    fuzz::expect(rest.size() == documents.size() - i && text_of(rest[0]) == text_of(document),
                 "the same from there on");
  }
  const bool strict = fuzz::accepts(file.path(), [&] { read(files, {}, data::BadLines::error, ignored); });
  fuzz::expect(strict == !bad, "an error where a line is bad");
  return 0;
}
