#pragma once

#include <annulus/model/parameters.hpp>

namespace annulus::model::test {

/// Three layers, four heads and two kv heads of 16.
inline LlamaConfig small_config() {
  LlamaConfig config;
  config.vocabulary = 50;
  config.layers = 3;
  config.hidden = 64;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 96;
  return config;
}

}  // namespace annulus::model::test
