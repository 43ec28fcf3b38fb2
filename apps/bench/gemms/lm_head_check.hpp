#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace annulus::bench {

/// What an LM head has made of a few tokens, all others being ignored, and what it was made from; on the
/// host.
template <class T>
struct HeadSample {
  std::int64_t vocabulary = 0, hidden_dim = 0;
  std::vector<std::int32_t> targets;  // (sample)
  std::vector<T> hidden, d_hidden;    // (sample, hidden_dim)
  std::vector<T> weight;              // (vocabulary, hidden_dim)
  std::vector<std::int64_t> entries;  // (entries): of the vocabulary, those looked at
  std::vector<float> d_weight;        // (entries, hidden_dim)
  double loss_sum = 0.0, grad_scale = 1.0;
};

/// Relative errors of loss, d_hidden and d_weight against double precision: keys `loss`, `d_hidden`,
/// `d_weight` (norm of the difference over the norm of what is right) and `tokens`. Throws Error naming the
/// first that is larger than T's rounding explains.
template <class T>
nlohmann::json check_head(const HeadSample<T>& sample);

}  // namespace annulus::bench
