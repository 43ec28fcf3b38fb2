#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
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

/// A place where a text may be cut in two: the ids of the parts, one after the other, are those of the whole.
struct TextCut {
  std::size_t end = 0;   ///< bytes of the first part
  std::size_t next = 0;  ///< where the second starts: `end`, or behind a space that encode itself adds
};

/// Turns text into token ids and back. Immutable; may be used by several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Threads that encode at the same time without waiting for one another; 0: any number.
  virtual int threads() const { return 0; }

  virtual const TokenizerIdentity& identity() const = 0;

  /// The model that shards carry along, empty for the byte tokenizer.
  virtual std::span<const std::uint8_t> model() const = 0;

  /// Appends the ids of `text`, without an end of document.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;

  /// The last place to cut a text that starts with `text` and goes on behind it; nothing where none is known.
  virtual std::optional<TextCut> last_cut(std::string_view /*text*/) const { return std::nullopt; }

  /// The text of `ids`; ends of documents are left out.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// One id per byte: ids 0 … 255 are the bytes, 256 is the end of a document.
std::unique_ptr<const Tokenizer> make_byte_tokenizer();

/// A SentencePiece model, as spm_train writes it; its `</s>` closes documents. `source` names it in errors.
/// Throws Error when it is none, is damaged or has no `</s>`.
std::unique_ptr<const Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& source);

/// Bytes of the largest model. One of a million pieces has some 20 MB.
inline constexpr std::int64_t largest_tokenizer_model = std::int64_t{1} << 28;

/// A tokenizer that other processes have (apps/tokens/pack_tokenizer_json.py), each at the other end of one
/// of the streams `sockets`, which stay open: a text goes as its number of bytes (u64) and the bytes; the
/// answer is a u64 that is 0, a u64 n and n ids (u32), or a u64 that is 1, a u64 n and a message of n bytes,
/// which encode throws as Error. A text goes to a process that has none; decode throws Error.
std::unique_ptr<const Tokenizer> make_piped_tokenizer(TokenizerIdentity identity, std::string model,
                                                      std::vector<int> sockets);

/// TokenizerIdentity::fingerprint of a model.
std::string fingerprint_of_model(std::string_view model);

/// The bytes of the file of a model, which has at most largest_tokenizer_model. Throws Error that names it.
std::string read_tokenizer_model(const std::filesystem::path& path);

/// The tokenizer `name` ("byte" or "sentencepiece"); `model` is the file of the SentencePiece model, empty
/// for bytes.
std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name, const std::filesystem::path& model);

}  // namespace annulus::data
