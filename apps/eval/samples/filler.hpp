#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "eval/samples/piece_encoder.hpp"
#include "eval/samples/random.hpp"

namespace annulus::eval {

/// Text around what is to be found, sentence by sentence.
class Filler {
 public:
  /// Sentences made of a few words, without numbers; a sample has them in any order.
  static Filler generated(const PieceEncoder& encode);

  /// Sentences of the user's text, of which a sample has a stretch from any place on; behind the last comes
  /// the first. White space becomes single spaces. Throws Error that names the file where it has no word.
  static Filler of_text(const PieceEncoder& encode, const std::filesystem::path& file);

  /// Sentences that have `tokens` ids or more together. Valid as long as this object.
  std::vector<std::span<const std::int32_t>> draw(std::int64_t tokens, Random& random);

 private:
  Filler(const PieceEncoder& encode, std::vector<std::string> sentences, bool in_order);

  const PieceEncoder& encode_;
  std::vector<std::string> sentences_;
  std::vector<Ids> ids_;  // of sentences, once drawn
  bool in_order_;
};

}  // namespace annulus::eval
