#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::data {

/// What tells whether two token shards can be read as one stream.
struct TokenizerIdentity {
  std::string name;                  ///< "byte", "sentencepiece", or what a writer of its own calls it
  std::int64_t vocabulary = 0;       ///< ids are 0 … vocabulary − 1
  std::int64_t end_of_document = 0;  ///< the id that closes each document
  std::string fingerprint;           ///< of the model, "crc32:89abcdef"; empty when there is none
  friend bool operator==(const TokenizerIdentity&, const TokenizerIdentity&) = default;
};

/// Turns text into token ids and back. Immutable; may be used by several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual const TokenizerIdentity& identity() const = 0;

  /// The model that shards carry along, empty for the byte tokenizer.
  virtual std::span<const std::uint8_t> model() const = 0;

  /// Appends the ids of `text`, without an end of document.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;

  /// The text of `ids`; ends of documents are left out.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// One id per byte: ids 0 … 255 are the bytes, 256 is the end of a document.
std::unique_ptr<const Tokenizer> make_byte_tokenizer();

/// A SentencePiece model, as spm_train writes it; its </s> closes documents. `source` names it in errors.
/// Throws Error when it is none or has no </s>.
std::unique_ptr<const Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& source);

/// The tokenizer `name` ("byte" or "sentencepiece"); `model` is the file of the SentencePiece model, empty
/// for bytes.
std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name, const std::filesystem::path& model);

}  // namespace annulus::data
