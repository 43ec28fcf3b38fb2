#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <annulus/training/data/tokenizer.hpp>

namespace annulus::eval {

using Ids = std::vector<std::int32_t>;

/// Encodes a text piece by piece: a piece is a number of words, single spaces stand between words and pieces,
/// and the ids of pieces, one after the other, are those of the whole text.
class PieceEncoder {
 public:
  /// `tokenizer` outlives this object. Throws Error where it does not encode texts word by word.
  explicit PieceEncoder(const data::Tokenizer& tokenizer);

  /// What the tokenizer puts in front of every text, like a token that begins documents.
  const Ids& front() const { return front_; }

  /// Ids of a piece and of the space in front of it.
  Ids operator()(std::string_view piece) const;

  std::int32_t end_of_document() const {
    return static_cast<std::int32_t>(tokenizer_.identity().end_of_document);
  }

  /// Ids of a whole text, with what stands in front of it.
  Ids whole(std::string_view text) const;

 private:
  Ids without_front(std::string_view text) const;

  const data::Tokenizer& tokenizer_;
  Ids front_;
  bool adds_space_ = false;  // the tokenizer itself puts one in front of a text
};

}  // namespace annulus::eval
