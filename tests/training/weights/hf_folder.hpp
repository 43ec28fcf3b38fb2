#pragma once

#include <cmath>

#include "training/io/atomic.hpp"
#include "training/weights/hf_weights.hpp"

namespace annulus::weights::test {

/// A small LLaMA.
inline HfConfig small_hf_config() {
  HfConfig config;
  config.family = "llama";
  config.shape.vocabulary = 11;
  config.shape.layers = 2;
  config.shape.hidden = 32;
  config.shape.heads = 4;
  config.shape.kv_heads = 2;
  config.shape.head_dim = 16;
  config.shape.ffn = 24;
  config.positions = 64;
  return config;
}

/// The weight of an element of the flat buffer: numbers of many magnitudes that bf16 and f16 hold exactly.
inline float small_weight(std::int64_t element) {
  const auto digits = static_cast<float>(element * 37 % 127 - 63);
  return std::ldexp(digits, static_cast<int>(element % 7) - 12);
}

inline void read_small_weights(std::int64_t begin, std::span<float> values) {
  for (float& value : values) value = small_weight(begin++);
}

/// Writes such a model.
inline void write_small_model(const std::string& folder, const HfConfig& config, DType type,
                              std::uint64_t shard_bytes = std::uint64_t{5} << 30) {
  write_hf_folder(folder,
                  {.config = config, .type = type, .shard_bytes = shard_bytes, .read = read_small_weights});
}

/// Replaces `from`, which stands there once, in a file.
inline void edit(const std::string& path, std::string_view from, std::string_view to) {
  std::string text = io::read_text(path);
  const std::size_t at = text.find(from);
  if (at == text.npos) throw std::runtime_error("nothing to replace in " + path);
  io::write_text_atomically(path, text.replace(at, from.size(), to));
}

}  // namespace annulus::weights::test
