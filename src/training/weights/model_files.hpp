#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What belongs to a model in Hugging Face's format beside its shape and weights: the tokenizer's files, how
/// text is generated, and the ids of special tokens. The engine reads none of it; it travels with a run, so
/// that an export is the whole model again.
namespace annulus::weights {

/// Contents of files by their names. What exports need of config.json, kept_text(), is one of them.
using ModelFiles = std::map<std::string, std::string, std::less<>>;

/// The name that kept_text() has among them.
inline constexpr const char* token_ids_file = "token_ids.json";

/// How text is generated, among them ids of special tokens.
inline constexpr const char* generation_file = "generation_config.json";

/// Files that make a tokenizer, of which a run's data can name one (data::TokenizerIdentity::fingerprint).
inline constexpr std::string_view tokenizer_models[] = {"tokenizer.json", "tokenizer.model"};

/// Whether a file of this name belongs to ModelFiles: generation_config.json, tokenizer.json,
/// tokenizer.model, tokenizer_config.json, special_tokens_map.json, added_tokens.json, vocab.json,
/// merges.txt, chat_template.jinja, chat_template.json and token_ids_file.
bool is_model_file(std::string_view name);

/// The files of a model's folder. Code stays behind, and so do settings that name code (auto_map) or say how
/// weights were quantized: `left_out` gets a line for each file that had some. Throws Error, one line that
/// names the file, when one is no regular file, has more than 256 MiB, or holds settings and is no JSON
/// object.
ModelFiles read_model_files(const std::filesystem::path& folder, std::vector<std::string>& left_out);

/// One more than the largest id of the tokenizer in tokenizer.json; none without the file, or where it is of
/// a form that is not known.
std::optional<std::int64_t> tokenizer_ids(const ModelFiles& files);

}  // namespace annulus::weights
