#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

namespace annulus::bench {

/// What an LM head has made of a few tokens, all others being ignored, and what it was made from.
template <class T>
struct HeadSample {
  Array2<T, HostExec> hidden, d_hidden;    // (tokens, hidden_dim)
  Array2<T, HostExec> weight;              // (vocabulary, hidden_dim)
  Array2<float, HostExec> d_weight;        // (vocabulary, hidden_dim)
  std::vector<std::int64_t> tokens;        // (sample): those that are not ignored
  std::vector<std::int32_t> targets = {};  // (sample)
  std::vector<std::int64_t> entries = {};  // of the vocabulary: rows of d_weight that are looked at
  double loss_sum = 0.0, grad_scale = 1.0;
};

/// Relative errors of loss, d_hidden and d_weight against double precision: keys `loss`, `d_hidden`,
/// `d_weight` (norm of the difference over the norm of what is right) and `tokens`. Throws Error naming the
/// first that is larger than T's rounding explains.
template <class T>
nlohmann::json check_head(const HeadSample<T>& sample);

}  // namespace annulus::bench
