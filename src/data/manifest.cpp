#include "manifest.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <annulus/base/error.hpp>
#include <annulus/io/atomic.hpp>

namespace annulus::data {

namespace {

constexpr const char* manifest_format = "annulus-pack";
constexpr int manifest_version = 2;

using nlohmann::json;

PackManifest from_json(const json& all) {
  PackManifest manifest;
  const json& arguments = all.at("arguments");
  const json& tokenizer = arguments.at("tokenizer");
  manifest.tokenizer = {tokenizer.at("name"), tokenizer.at("vocabulary"), tokenizer.at("end_of_document"),
                        tokenizer.at("fingerprint")};
  manifest.shard_tokens = arguments.at("shard_tokens");
  manifest.extensions = arguments.at("extensions").get<std::vector<std::string>>();
  manifest.inputs = all.at("inputs");
  for (const json& shard : all.at("shards")) {
    manifest.shards.push_back(
        {shard.at("file"), shard.at("tokens"), shard.at("documents"), shard.at("checksum")});
  }
  const json& next = all.at("next");
  manifest.next = {next.at("file"), next.at("offset"), next.at("checksum")};
  manifest.skipped_binary = all.at("skipped").at("binary");
  manifest.skipped_empty = all.at("skipped").at("empty");
  manifest.complete = all.at("complete");
  manifest.unigram_entropy = all.at("unigram_entropy");
  return manifest;
}

}  // namespace

std::optional<PackManifest> PackManifest::read(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / file_name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  const json all = json::parse(io::read_text(path), nullptr, false);
  require(all.is_object() && all.value("format", "") == manifest_format,
          "'{}' is no manifest of annulus-tokens pack: choose another output folder", path.string());
  require(all.value("version", 0) == manifest_version,
          "'{}' has version {}, this program writes version {}: choose another output folder", path.string(),
          all.value("version", 0), manifest_version);
  try {
    return from_json(all);
  } catch (const json::exception& error) {
    fail("'{}' is damaged ({}): delete the folder and pack again", path.string(), error.what());
  }
}

void PackManifest::write(const std::filesystem::path& folder) const {
  json list = json::array();
  for (const Shard& shard : shards) {
    list.push_back({{"file", shard.file},
                    {"tokens", shard.tokens},
                    {"documents", shard.documents},
                    {"checksum", shard.checksum}});
  }
  const json all = {{"format", manifest_format},
                    {"version", manifest_version},
                    {"arguments",
                     {{"tokenizer",
                       {{"name", tokenizer.name},
                        {"vocabulary", tokenizer.vocabulary},
                        {"end_of_document", tokenizer.end_of_document},
                        {"fingerprint", tokenizer.fingerprint}}},
                      {"shard_tokens", shard_tokens},
                      {"extensions", extensions}}},
                    {"inputs", inputs},
                    {"shards", list},
                    {"next", {{"file", next.file}, {"offset", next.offset}, {"checksum", next.checksum}}},
                    {"skipped", {{"binary", skipped_binary}, {"empty", skipped_empty}}},
                    {"complete", complete},
                    {"unigram_entropy", unigram_entropy}};
  io::write_text_atomically(folder / file_name, all.dump(2) + "\n");
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
