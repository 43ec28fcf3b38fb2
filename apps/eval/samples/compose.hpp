#pragma once

#include <cstdint>
#include <string>

#include "eval/samples/filler.hpp"
#include "eval/samples/kinds.hpp"
#include "eval/samples/piece_encoder.hpp"

namespace annulus::eval {

/// A document with a question at its end, and the answer.
struct Sample {
  Ids ids;
  std::int64_t answer_begin = 0, answer_end = 0;  ///< where in `ids` the answer stands
  std::string answer = {};
};

/// What a sample is to be.
struct SampleOrder {
  Kind kind = Kind::needle;
  std::int64_t tokens = 0;  ///< of the whole document, with the end that closes it
  double depth = 0;         ///< of what matters, where the kind has one
};

/// Composes a document of exactly as many tokens. The first words of its text may be cut. Throws Error where
/// question, answer and what is hidden have more tokens, or so few words fit that none is the most common
/// one.
Sample compose(const SampleOrder& order, const KindOptions& options, const PieceEncoder& encode,
               Filler& filler, Random& random);

/// A document of a prompt as it is and an answer behind it. What is not needed of `tokens` are ends of
/// documents; 0: none.
Sample compose(const Ids& prompt, const Ids& answer, std::int64_t tokens, std::int32_t end_of_document);

}  // namespace annulus::eval
