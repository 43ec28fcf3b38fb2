#pragma once

#include <annulus/training/model/config.hpp>

namespace annulus::model::test {

/// Three layers, four heads and two kv heads of 16.
inline Config small_config() {
  return {.vocabulary = 50, .layers = 3, .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn = 96};
}

}  // namespace annulus::model::test
