#pragma once

#include <fmt/format.h>

#include <random>
#include <string>
#include <vector>

#include "support/attention/block_mask.hpp"

namespace annulus::test {

/// One mask of each kind, and of each kind of joint, for any length; block lists lie in a folder of this
/// object.
class MaskTexts {
 public:
  /// Texts for a sequence of `tokens` tokens.
  std::vector<std::string> all(std::int64_t tokens) const {
    const std::string documents = documents_of(tokens), blocks = blocks_of(tokens);
    return {"full",
            "causal",
            "window:20,5",
            "window:0,0",
            "dilated:9,3",
            documents,
            blocks,
            "causal+" + blocks,
            documents + "+window:16,0",
            "dilated:20,2+" + documents,
            "window:30,30+" + blocks};
  }

  /// Documents of one token, of a few and of many.
  static std::string documents_of(std::int64_t tokens) {
    std::string text = "documents:0";
    for (const std::int64_t start : {1, 20, 83, 84, 190}) {
      if (start < tokens) text += fmt::format(",{}", start);
    }
    return text;
  }

  /// The diagonal and a random half of the blocks of 12 tokens; the second block row has none, the third all.
  std::string blocks_of(std::int64_t tokens) const {
    std::mt19937 generator(7);
    return block_mask(folder_, fmt::format("{}", tokens), tokens, 12, [&](std::int64_t r, std::int64_t c) {
      return r == 2 || (r != 1 && (c == r || generator() % 2 == 0));
    });
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace annulus::test
