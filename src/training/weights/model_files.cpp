#include "training/weights/model_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <system_error>

#include "base/file.hpp"
#include "training/io/json.hpp"
#include "training/weights/hf_config.hpp"

namespace annulus::weights {

namespace fs = std::filesystem;

namespace {

struct ModelFile {
  std::string_view name;
  bool settings;  // a JSON object that may name code
};
constexpr std::array named{ModelFile{generation_file, true},
                           ModelFile{"tokenizer.json", false},
                           ModelFile{"tokenizer.model", false},
                           ModelFile{"tokenizer_config.json", true},
                           ModelFile{"special_tokens_map.json", true},
                           ModelFile{"added_tokens.json", true},
                           ModelFile{"vocab.json", false},
                           ModelFile{"merges.txt", false},
                           ModelFile{"chat_template.jinja", false},
                           ModelFile{"chat_template.json", true}};

// Keys of settings that stay behind: each would have a reader of the folder fetch or run code, or take the
// weights for quantized ones.
constexpr std::array unwanted{"auto_map", "custom_generate", "quantization_config"};

constexpr FileKind model_file{"a file of a model", 256 * kinds::mib};

/// What the file holds; nothing where there is none. Links are followed, as Hugging Face's cache has them.
std::optional<std::string> text_if_there(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return std::nullopt;
  return read_text(path, model_file);
}

/// Code of the folder: it may compute another model than Annulus does by config.json.
void note_code(const fs::path& folder, std::vector<std::string>& left_out) {
  const fs::path config = folder / "config.json";
  if (const auto contents = text_if_there(config)) {
    const nlohmann::json json = io::parse_json_object(*contents, config.string());
    for (const char* key : unwanted)
      if (json.contains(key))
        left_out.push_back(fmt::format("'{}': {} does not go along", config.string(), key));
  }
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".py") names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  if (!names.empty())
    left_out.push_back(
        fmt::format("'{}': code does not go along ({})", folder.string(), fmt::join(names, ", ")));
}

}  // namespace

bool is_model_file(std::string_view name) {
  return name == token_ids_file ||
         std::any_of(named.begin(), named.end(), [&](const ModelFile& file) { return file.name == name; });
}

ModelFiles read_model_files(const fs::path& folder, std::vector<std::string>& left_out) {
  ModelFiles files;
  for (const auto& [name, settings] : named) {
    const fs::path path = folder / name;
    std::optional<std::string> contents = text_if_there(path);
    if (!contents) continue;
    if (settings) {
      nlohmann::json json = io::parse_json_object(*contents, path.string());
      for (const char* key : unwanted) {
        if (json.erase(key) == 0) continue;
        left_out.push_back(fmt::format("'{}': {} does not go along", path.string(), key));
        *contents = json.dump(2) + "\n";
      }
    }
    files.emplace(name, *std::move(contents));
  }
  files.emplace(token_ids_file, kept_text(read_hf_config(folder)));
  note_code(folder, left_out);
  return files;
}

std::optional<std::int64_t> tokenizer_ids(const ModelFiles& files) {
  const auto file = files.find("tokenizer.json");
  if (file == files.end()) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(file->second, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  std::int64_t ids = 0;
  const auto take = [&](const nlohmann::json& id) {
    if (id.is_number_integer()) ids = std::max(ids, id.get<std::int64_t>() + 1);
  };
  const nlohmann::json words = json.value(nlohmann::json::json_pointer("/model/vocab"), nlohmann::json());
  if (words.is_array()) ids = std::ssize(words);  // Unigram: words in the order of their ids
  if (words.is_object())
    for (const auto& [word, id] : words.items()) take(id);
  for (const nlohmann::json& added : json.value("added_tokens", nlohmann::json::array()))
    if (added.is_object()) take(added.value("id", nlohmann::json()));
  return ids > 0 ? std::optional(ids) : std::nullopt;
}

}  // namespace annulus::weights
