#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace annulus::bench {

/// The command line of `annulus-bench attention`.
struct AttentionOptions {
  bool local = false;
  std::string schedule = "ring", layout = "zigzag", mask = "causal", dtype = "f32", kernel = "automatic";
  std::int64_t tokens = 4096;
  int heads = 8;
  int kv_heads = 0;  ///< 0: like heads
  int head_dim = 128, batch = 1;
  std::uint64_t seed = 1;
  std::optional<std::uint64_t> embedding_seed;  ///< like `seed` when not given
  int repetitions = 5, ranks_per_node = 0;
  bool check = false;
  std::optional<double> tolerance;  ///< of the check, instead of the type's
  std::string json, dump;           ///< files; empty: none
  std::vector<std::filesystem::path> data;

  int key_value_heads() const { return kv_heads > 0 ? kv_heads : heads; }
};

/// Declares the command with its options, which land in `options` when the command line is parsed.
CLI::App* add_attention_command(CLI::App& app, AttentionOptions& options);

/// Throws Error naming the option for what makes no sense before any rank talks to another.
void check_options(const AttentionOptions& options, int ranks);

}  // namespace annulus::bench
