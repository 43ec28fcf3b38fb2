#include <annulus/training/data/tokenizer.hpp>

#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "sentencepiece_model.hpp"
#include "training/io/crc32.hpp"

namespace annulus::data {

namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  const TokenizerIdentity& identity() const override { return identity_; }
  std::span<const std::uint8_t> model() const override { return {}; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const std::size_t before = ids.size();
    ids.resize(before + text.size());
    std::transform(text.begin(), text.end(), ids.begin() + static_cast<std::ptrdiff_t>(before),
                   [](char byte) { return static_cast<unsigned char>(byte); });
  }

  std::optional<TextCut> last_cut(std::string_view text) const override {
    return TextCut{text.size(), text.size()};
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < identity_.vocabulary,
              "the byte tokenizer has no token {}: its ids are 0 to 256", id);
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }

 private:
  TokenizerIdentity identity_{"byte", 257, 256, ""};
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& source) : model_(std::move(model)) {
    breaks_ = require_sound_model(model_, source);
    std::string problem;
    try {
      const auto status = processor_.LoadFromSerializedProto(model_);
      if (!status.ok()) problem = status.ToString();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    require(problem.empty(),
            "'{}' is not a SentencePiece model ({}): give the .model file that spm_train wrote", source,
            problem);
    const int end = processor_.eos_id();
    require(end >= 0,
            "the SentencePiece model '{}' has no </s>, which closes documents: train it with an eos_id",
            source);
    identity_ = {"sentencepiece", processor_.GetPieceSize(), end, fingerprint_of_model(model_)};
  }

  const TokenizerIdentity& identity() const override { return identity_; }

  std::span<const std::uint8_t> model() const override {
    return {reinterpret_cast<const std::uint8_t*>(model_.data()), model_.size()};
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::vector<int> pieces;
    const auto status = processor_.Encode(text, &pieces);
    require(status.ok(), "SentencePiece cannot encode a text of {} bytes: {}", text.size(),
            status.ToString());
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  std::optional<TextCut> last_cut(std::string_view text) const override { return breaks_.last(text); }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> pieces;
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < identity_.vocabulary,
              "the SentencePiece model has no token {}: its ids are 0 to {}", id, identity_.vocabulary - 1);
      if (id != identity_.end_of_document) pieces.push_back(id);
    }
    std::string text;
    const auto status = processor_.Decode(pieces, &text);
    require(status.ok(), "SentencePiece cannot decode {} tokens: {}", ids.size(), status.ToString());
    return text;
  }

 private:
  std::string model_;
  WordBreaks breaks_;
  sentencepiece::SentencePieceProcessor processor_;
  TokenizerIdentity identity_;
};

}  // namespace

std::unique_ptr<const Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<const Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& source) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), source);
}

std::string fingerprint_of_model(std::string_view model) {
  return fmt::format("crc32:{:08x}", io::crc32_of(std::span<const char>(model)));
}

std::string read_tokenizer_model(const std::filesystem::path& path) {
  return read_text(path, {"a tokenizer's model", std::uint64_t{largest_tokenizer_model}});
}

std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name, const std::filesystem::path& model) {
  if (name == "byte") {
    require(model.empty(),
            "the byte tokenizer takes no model, but '{}' was given: leave it out, or choose sentencepiece",
            model.string());
    return make_byte_tokenizer();
  }
  require(name == "sentencepiece", "unknown tokenizer '{}': choose byte or sentencepiece", name);
  require(!model.empty(),
          "the sentencepiece tokenizer needs a model: give the .model file that spm_train wrote");
  return make_sentencepiece_tokenizer(read_tokenizer_model(model), model.string());
}

}  // namespace annulus::data
