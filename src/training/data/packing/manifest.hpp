#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/training/data/packer.hpp>

#include "inputs.hpp"

namespace annulus::data {

/// The contents of pack.json: what is being packed and how far it has come.
struct PackManifest {
  static constexpr const char* file_name = "pack.json";

  TokenizerIdentity tokenizer;
  std::string tokenizer_settings;
  std::int64_t shard_tokens = 0;
  std::vector<std::string> extensions;

  std::vector<PackedShard> shards;
  InputPosition next;  ///< behind the last document of the last shard
  std::string inputs;  ///< InputFingerprint of the files before that: what the shards were made of
  std::int64_t skipped_binary = 0, skipped_empty = 0, skipped_lines = 0;
  bool complete = false;
  double unigram_entropy = 0;

  /// The name of the shard that is the `number`-th from 0.
  static std::string shard_name(std::int64_t number);

  /// Reads the text of a manifest. Throws Error naming `origin` when it is none or damaged.
  static PackManifest parse(std::string_view text, const std::string& origin);

  /// Reads the manifest of an output folder; nothing when there is none. Throws Error when it is damaged.
  static std::optional<PackManifest> read(const std::filesystem::path& folder);

  std::string to_text() const;

  /// Replaces the manifest of an output folder, atomically.
  void write(const std::filesystem::path& folder) const;

  /// Throws Error, naming the first difference, unless `other` has the same arguments.
  void require_same_arguments(const PackManifest& other, const std::filesystem::path& folder) const;

  /// Throws Error unless the shards were made of the first of these files; all of them when it is complete.
  void require_same_inputs(std::span<const TextInput> files, const std::filesystem::path& folder) const;

  std::int64_t tokens() const;
  std::int64_t documents() const;
};

}  // namespace annulus::data
