#include "training/data/packing/manifest.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <system_error>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "training/data/shard.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"

namespace annulus::data {

namespace {

constexpr const char* manifest_format = "annulus-pack";
constexpr int manifest_version = 2;

using nlohmann::json;

/// Some 150 bytes a shard.
constexpr FileKind manifest_file{"the manifest of a pack", 256 * kinds::mib};

/// The member `key` of an object. Throws Error that names it where it is missing or of another type.
template <class T>
T get(const json& object, const char* key) {
  try {
    return object.at(key).get<T>();
  } catch (const json::exception&) {
    fail("{} is missing or of another type", key);
  }
}

std::int64_t count(const json& object, const char* key, std::int64_t least = 0,
                   std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const auto value = get<json>(object, key);
  const bool whole =
      value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
  require(whole && value.get<std::int64_t>() >= least, "{} = {} is no number from {} to {}", key,
          io::shown(value), least, most);
  return value.get<std::int64_t>();
}

std::uint32_t checksum(const json& object) {
  return static_cast<std::uint32_t>(count(object, "checksum", 0, std::numeric_limits<std::uint32_t>::max()));
}

/// Throws Error where a value is missing or wrong.
PackManifest from_json(const json& all) {
  PackManifest manifest;
  const auto arguments = get<json>(all, "arguments"), tokenizer = get<json>(arguments, "tokenizer"),
             next = get<json>(all, "next"), skipped = get<json>(all, "skipped");
  manifest.tokenizer = {get<std::string>(tokenizer, "name"), count(tokenizer, "vocabulary", 1),
                        count(tokenizer, "end_of_document"), get<std::string>(tokenizer, "fingerprint")};
  if (arguments.contains("tokenizer_settings"))  // which earlier programs did not write
    manifest.tokenizer_settings = get<std::string>(arguments, "tokenizer_settings");
  manifest.shard_tokens = count(arguments, "shard_tokens", 1);
  manifest.extensions = get<std::vector<std::string>>(arguments, "extensions");
  manifest.inputs = get<std::string>(all, "inputs");
  for (const json& shard : get<json::array_t>(all, "shards")) {
    manifest.shards.push_back({get<std::string>(shard, "file"), count(shard, "tokens", 1),
                               count(shard, "documents", 1, max_documents), checksum(shard)});
    require(manifest.shards.back().file == PackManifest::shard_name(std::ssize(manifest.shards) - 1),
            "shards are not called tokens-000000.h5 and so on");
  }
  manifest.next = {count(next, "file"), count(next, "offset"), checksum(next)};
  manifest.skipped_binary = count(skipped, "binary");
  manifest.skipped_empty = count(skipped, "empty");
  if (skipped.contains("lines")) manifest.skipped_lines = count(skipped, "lines");
  manifest.complete = get<bool>(all, "complete");
  manifest.unigram_entropy = get<double>(all, "unigram_entropy");
  return manifest;
}

[[noreturn]] void reject(const std::filesystem::path& folder, const char* what, const std::string& before,
                         const std::string& now) {
  fail(
      "the folder '{}' holds a pack with other {} ({}, now {}): "
      "choose another output folder, or delete that one",
      folder.string(), what, before, now);
}

}  // namespace

std::string PackManifest::shard_name(std::int64_t number) {
  return fmt::format("tokens-{:06}.h5", number);
}

PackManifest PackManifest::parse(std::string_view text, const std::string& origin) {
  const json all = io::parse_json_object(text, origin);
  require(all.value("format", json()) == manifest_format,
          "'{}' is no manifest of annulus-tokens pack: choose another output folder", origin);
  const json version = all.value("version", json());
  require(version == manifest_version,
          "'{}' has version {}, this program writes version {}: choose another output folder", origin,
          io::shown(version), manifest_version);
  try {
    return from_json(all);
  } catch (const Error& error) {
    fail("'{}' is damaged ({}): delete the folder and pack again", origin, error.what());
  }
}

std::optional<PackManifest> PackManifest::read(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / file_name;
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return std::nullopt;
  return parse(read_text(path, manifest_file, Links::refuse), path.string());
}

std::string PackManifest::to_text() const {
  json list = json::array();
  for (const PackedShard& shard : shards) {
    list.push_back({{"file", shard.file},
                    {"tokens", shard.tokens},
                    {"documents", shard.documents},
                    {"checksum", shard.checksum}});
  }
  const json all = {
      {"format", manifest_format},
      {"version", manifest_version},
      {"arguments",
       {{"tokenizer",
         {{"name", tokenizer.name},
          {"vocabulary", tokenizer.vocabulary},
          {"end_of_document", tokenizer.end_of_document},
          {"fingerprint", tokenizer.fingerprint}}},
        {"tokenizer_settings", tokenizer_settings},
        {"shard_tokens", shard_tokens},
        {"extensions", extensions}}},
      {"inputs", inputs},
      {"shards", list},
      {"next", {{"file", next.file}, {"offset", next.offset}, {"checksum", next.checksum}}},
      {"skipped", {{"binary", skipped_binary}, {"empty", skipped_empty}, {"lines", skipped_lines}}},
      {"complete", complete},
      {"unigram_entropy", unigram_entropy}};
  return io::json_text(all) + "\n";
}

void PackManifest::write(const std::filesystem::path& folder) const {
  io::write_text_atomically(folder / file_name, to_text(), Links::refuse);
}

void PackManifest::require_same_arguments(const PackManifest& other,
                                          const std::filesystem::path& folder) const {
  const auto compare = [&](const auto& mine, const auto& theirs, const char* what, const auto& text) {
    if (mine != theirs) reject(folder, what, text(mine), text(theirs));
  };
  compare(tokenizer, other.tokenizer, "tokenizer", [](const TokenizerIdentity& identity) {
    return fmt::format("{} {} of {} ids", identity.name, identity.fingerprint, identity.vocabulary);
  });
  compare(tokenizer_settings, other.tokenizer_settings, "settings of the tokenizer",
          [](const std::string& text) { return text.empty() ? "none" : text; });
  compare(shard_tokens, other.shard_tokens, "--shard-tokens",
          [](std::int64_t n) { return fmt::to_string(n); });
  compare(extensions, other.extensions, "--extensions",
          [](const std::vector<std::string>& list) { return fmt::format("{}", fmt::join(list, ",")); });
}

void PackManifest::require_same_inputs(std::span<const TextInput> files,
                                       const std::filesystem::path& folder) const {
  const std::int64_t count = complete ? std::ssize(files) : std::min(next.file, std::ssize(files));
  InputFingerprint fingerprint;
  for (const TextInput& file : files.first(static_cast<std::size_t>(count))) fingerprint.add(file);
  if (fingerprint.text() != inputs) reject(folder, "inputs", inputs, fingerprint.text());
  if (!begins_as_before(files, next)) {
    reject(folder, "inputs", fmt::format("{} bytes of the next file", next.offset), "they differ");
  }
}

std::int64_t PackManifest::tokens() const {
  std::int64_t sum = 0;
  for (const PackedShard& shard : shards) sum += shard.tokens;
  return sum;
}

std::int64_t PackManifest::documents() const {
  std::int64_t sum = 0;
  for (const PackedShard& shard : shards) sum += shard.documents;
  return sum;
}

}  // namespace annulus::data
