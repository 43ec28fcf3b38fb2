#include "manifest.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <system_error>

#include <annulus/base/error.hpp>
#include <annulus/base/file.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/json.hpp>

namespace annulus::data {

namespace {

constexpr const char* manifest_format = "annulus-pack";
constexpr int manifest_version = 2;

using nlohmann::json;

/// Some 150 bytes a shard.
constexpr FileKind manifest_file{"the manifest of a pack", 256 * kinds::mib};

/// Takes values out of a manifest; every Error names it, and the value.
class ManifestReader {
 public:
  explicit ManifestReader(const std::string& origin) : origin_(origin) {}

  [[noreturn]] void damaged(const std::string& what) const {
    fail("'{}' is damaged ({}): delete the folder and pack again", origin_, what);
  }
  const json& at(const json& object, const char* key, json::value_t type) const {
    if (!object.is_object() || !object.contains(key)) damaged(fmt::format("{} is missing", key));
    if (object[key].type() != type) damaged(fmt::format("{} is {}", key, object[key].type_name()));
    return object[key];
  }
  std::string text(const json& object, const char* key) const {
    return at(object, key, json::value_t::string).get<std::string>();
  }
  std::int64_t count(const json& object, const char* key, std::int64_t least = 0,
                     std::int64_t most = std::numeric_limits<std::int64_t>::max()) const {
    const json value = object.is_object() && object.contains(key) ? object[key] : json();
    const bool whole =
        value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
    if (!whole || value.get<std::int64_t>() < least)
      damaged(fmt::format("{} is no number from {} to {}", key, least, most));
    return value.get<std::int64_t>();
  }
  std::uint32_t checksum(const json& object) const {
    return static_cast<std::uint32_t>(
        count(object, "checksum", 0, std::numeric_limits<std::uint32_t>::max()));
  }

 private:
  const std::string& origin_;
};

PackManifest from_json(const json& all, const ManifestReader& read) {
  using Type = json::value_t;
  PackManifest manifest;
  const json& arguments = read.at(all, "arguments", Type::object);
  const json& tokenizer = read.at(arguments, "tokenizer", Type::object);
  manifest.tokenizer = {read.text(tokenizer, "name"), read.count(tokenizer, "vocabulary", 1),
                        read.count(tokenizer, "end_of_document"), read.text(tokenizer, "fingerprint")};
  if (arguments.contains("tokenizer_settings"))  // which earlier programs did not write
    manifest.tokenizer_settings = read.text(arguments, "tokenizer_settings");
  manifest.shard_tokens = read.count(arguments, "shard_tokens", 1);
  for (const json& extension : read.at(arguments, "extensions", Type::array)) {
    if (!extension.is_string()) read.damaged("extensions holds no strings");
    manifest.extensions.push_back(extension.get<std::string>());
  }
  manifest.inputs = read.text(all, "inputs");
  for (const json& shard : read.at(all, "shards", Type::array)) {
    manifest.shards.push_back({read.text(shard, "file"), read.count(shard, "tokens", 1),
                               read.count(shard, "documents", 1, max_documents), read.checksum(shard)});
    if (manifest.shards.back().file != PackManifest::shard_name(std::ssize(manifest.shards) - 1))
      read.damaged("shards are not called tokens-000000.h5 and so on");
  }
  const json& next = read.at(all, "next", Type::object);
  manifest.next = {read.count(next, "file"), read.count(next, "offset"), read.checksum(next)};
  const json& skipped = read.at(all, "skipped", Type::object);
  manifest.skipped_binary = read.count(skipped, "binary");
  manifest.skipped_empty = read.count(skipped, "empty");
  if (skipped.contains("lines")) manifest.skipped_lines = read.count(skipped, "lines");
  manifest.complete = read.at(all, "complete", Type::boolean).get<bool>();
  const json entropy = all.contains("unigram_entropy") ? all["unigram_entropy"] : json();
  if (!entropy.is_number()) read.damaged("unigram_entropy is no number");
  manifest.unigram_entropy = entropy.get<double>();
  return manifest;
}

}  // namespace

std::string PackManifest::shard_name(std::int64_t number) {
  return fmt::format("tokens-{:06}.h5", number);
}

PackManifest PackManifest::parse(std::string_view text, const std::string& origin) {
  const json all = io::parse_json(text, origin);
  require(all.is_object() && all.contains("format") && all["format"] == manifest_format,
          "'{}' is no manifest of annulus-tokens pack: choose another output folder", origin);
  const json version = all.contains("version") ? all["version"] : json();
  require(version == manifest_version,
          "'{}' has version {}, this program writes version {}: choose another output folder", origin,
          version.is_number() ? version.dump() : "?", manifest_version);
  return from_json(all, ManifestReader(origin));
}

std::optional<PackManifest> PackManifest::read(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / file_name;
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return std::nullopt;
  return parse(read_text(path, manifest_file, Links::refuse), path.string());
}

std::string PackManifest::to_text() const {
  json list = json::array();
  for (const Shard& shard : shards) {
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

namespace {

[[noreturn]] void reject(const std::filesystem::path& folder, const char* what, const std::string& before,
                         const std::string& now) {
  fail(
      "the folder '{}' holds a pack with other {} ({}, now {}): choose another output folder, or delete that "
      "one",
      folder.string(), what, before, now);
}

}  // namespace

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

void PackManifest::require_same_inputs(std::span<const InputFile> files,
                                       const std::filesystem::path& folder) const {
  const std::int64_t count = complete ? std::ssize(files) : std::min(next.file, std::ssize(files));
  InputFingerprint fingerprint;
  for (const InputFile& file : files.first(static_cast<std::size_t>(count))) fingerprint.add(file);
  if (fingerprint.text() != inputs) reject(folder, "inputs", inputs, fingerprint.text());
  if (!begins_as_before(files, next)) {
    reject(folder, "inputs", fmt::format("{} bytes of the next file", next.offset), "they differ");
  }
}

std::int64_t PackManifest::tokens() const {
  std::int64_t sum = 0;
  for (const Shard& shard : shards) sum += shard.tokens;
  return sum;
}

std::int64_t PackManifest::documents() const {
  std::int64_t sum = 0;
  for (const Shard& shard : shards) sum += shard.documents;
  return sum;
}

}  // namespace annulus::data
