#pragma once

#include <string>
#include <string_view>

namespace annulus::data {

/// Throws Error that names `source` unless `model` is a SentencePiece model whose tables the library can
/// follow without leaving them: it trusts them (docs/decisions/0006-sentencepiece-models.md).
void require_sound_model(std::string_view model, const std::string& source);

}  // namespace annulus::data
