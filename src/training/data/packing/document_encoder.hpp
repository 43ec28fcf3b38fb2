#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/training/data/tokenizer.hpp>

#include "chat_template.hpp"
#include "inputs.hpp"

namespace annulus::data {

/// An id of a token that does not count as a target, until its shard is written; the id itself is ~id.
constexpr std::int32_t not_counted(std::int32_t id) {
  return ~id;
}

/// A document of the inputs as ids, or why there is none.
struct EncodedDocument {
  RawDocument raw;  ///< where it comes from; its bytes are taken
  Document::Kind kind = Document::Kind::text;
  std::string problem;
  std::vector<std::int32_t> ids;  ///< with the end of the document; no one at all of an empty text
};

/// Turns documents into ids. Threads may use it together where they may use the tokenizer.
class DocumentEncoder {
 public:
  /// `tokenizer` and `chat` outlive this; `chat` null: records have a text.
  DocumentEncoder(const Tokenizer& tokenizer, const ChatTemplate* chat);

  /// Encodes a document that is there as a whole. Throws Error that names the place in the document.
  EncodedDocument operator()(RawDocument document) const;

  /// Appends the ids of a text, or of a part of one that next_cut has cut.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const { tokenizer_.encode(text, ids); }

  /// The id that closes documents.
  std::int32_t end_of_document() const {
    return static_cast<std::int32_t>(tokenizer_.identity().end_of_document);
  }

  /// Where the next part of a text ends: behind 1 MiB, or as many as the tokenizer needs to cut it; the last
  /// part is what is left. Depends on the text alone, as sums of scores are rounded
  /// (docs/formats/token-shards.md). `rest(n)` gives what is left, with more than n bytes of it unless it has
  /// no more; `done` bytes of the text lie before it, as messages say.
  TextCut next_cut(const std::function<std::string_view(std::size_t)>& rest, std::size_t done) const;

 private:
  void encode_whole(std::string_view text, std::vector<std::int32_t>& ids) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  std::vector<std::int32_t> front_;  // what the tokenizer puts in front of each text
};

}  // namespace annulus::data
