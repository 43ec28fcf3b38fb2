#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <annulus/training/data/tokenizer.hpp>

namespace annulus::data {

/// Where a SentencePiece model gives the parts of a text the ids that the whole has: at a space, as far as
/// neither replacements of characters nor pieces reach across it, and the space that the model puts in front
/// of a text stands for it (docs/decisions/0006-sentencepiece-models.md).
struct WordBreaks {
  bool known = false;         ///< there are such places
  bool adds_space = true;     ///< a text gets a space in front
  bool joins_spaces = true;   ///< spaces in a row are one, those at both ends of a text none
  bool replaces = false;      ///< characters are replaced
  bool keeps_letters = true;  ///< none that ends in a letter or digit of ASCII becomes nothing or a space
  bool newline = false;       ///< "\n" becomes a space

  /// Tokenizer::last_cut.
  std::optional<TextCut> last(std::string_view text) const;
};

/// Throws Error that names `source` unless `model` is a SentencePiece model whose tables the library can
/// follow without leaving them: it trusts them (docs/decisions/0006-sentencepiece-models.md). Returns where
/// the model's texts may be cut.
WordBreaks require_sound_model(std::string_view model, const std::string& source);

}  // namespace annulus::data
