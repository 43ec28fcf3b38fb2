#include "eval/samples/piece_encoder.hpp"

#include <algorithm>
#include <string>

#include <annulus/base/error.hpp>

namespace annulus::eval {

PieceEncoder::PieceEncoder(const data::Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  tokenizer.encode("", front_);
  const auto is_whole_behind_one = [&](std::string_view next) {
    Ids joined = without_front("one");
    std::ranges::copy(without_front(next), std::back_inserter(joined));
    return joined == without_front("one 27");
  };
  adds_space_ = !is_whole_behind_one(" 27");
  require(!adds_space_ || is_whole_behind_one("27"),
          "the tokenizer '{}' does not encode texts word by word, so no sample can be composed of parts: use "
          "another one",
          tokenizer.identity().name);
}

Ids PieceEncoder::whole(std::string_view text) const {
  Ids ids;
  tokenizer_.encode(text, ids);
  return ids;
}

Ids PieceEncoder::without_front(std::string_view text) const {
  Ids ids = whole(text);
  const bool has_front = std::ranges::mismatch(front_, ids).in1 == front_.end();
  if (has_front) ids.erase(ids.begin(), ids.begin() + std::ssize(front_));
  return ids;
}

Ids PieceEncoder::operator()(std::string_view piece) const {
  return adds_space_ ? without_front(piece) : without_front(" " + std::string(piece));
}

}  // namespace annulus::eval
