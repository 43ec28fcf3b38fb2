#include "document_encoder.hpp"

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::data {

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, const ChatTemplate* chat)
    : tokenizer_(tokenizer), chat_(chat) {
  if (chat != nullptr) tokenizer.encode("", front_);
}

TextCut DocumentEncoder::next_cut(const std::function<std::string_view(std::size_t)>& rest,
                                  std::size_t done) const {
  constexpr std::size_t part_bytes = std::size_t{1} << 20;
  for (std::size_t part = part_bytes;; part *= 2) {
    require(static_cast<std::int64_t>(part) <= longest_part,
            "its first {} MiB behind byte {} cannot be given to the tokenizer '{}' in parts (it knows no "
            "place where a cut keeps the ids), and are too much at once: cut the text into files or records "
            "of JSON lines, each a document",
            longest_part >> 20, done, tokenizer_.identity().name);
    const std::string_view text = rest(part);
    if (text.size() <= part) return {text.size(), text.size()};
    if (const auto cut = tokenizer_.last_cut(text.substr(0, part))) return *cut;
  }
}

void DocumentEncoder::encode_whole(std::string_view text, std::vector<std::int32_t>& ids) const {
  for (std::size_t done = 0;;) {
    const std::string_view rest = text.substr(done);
    const TextCut cut = next_cut([&](std::size_t) { return rest; }, done);
    encode(rest.substr(0, cut.end), ids);
    done += cut.next;
    if (done >= text.size()) return;
  }
}

EncodedDocument DocumentEncoder::operator()(RawDocument document) const {
  Document taken = document_of(document, chat_);
  std::string().swap(document.bytes);
  EncodedDocument encoded{
      .raw = std::move(document), .kind = taken.kind, .problem = std::move(taken.problem), .ids = {}};
  std::vector<std::int32_t>& ids = encoded.ids;
  bool counts = true, first = true;
  for (const TextPart& part : taken.parts) {
    if (part.text.empty()) continue;
    const std::size_t before = ids.size();
    encode_whole(part.text, ids);
    counts = part.counts;
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(before);
    // What the tokenizer puts in front of a text stands in front of the document alone.
    if (!std::exchange(first, false) &&
        std::mismatch(front_.begin(), front_.end(), begin, ids.end()).first == front_.end())
      ids.erase(begin, begin + std::ssize(front_));
    if (!counts) std::transform(begin, ids.end(), begin, not_counted);
  }
  if (first) return encoded;
  ids.push_back(counts ? end_of_document() : not_counted(end_of_document()));
  return encoded;
}

}  // namespace annulus::data
