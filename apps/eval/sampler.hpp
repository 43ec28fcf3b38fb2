#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace annulus::eval {

/// How the next token is chosen from its logits.
struct SamplingOptions {
  double temperature = 0;  ///< logits are divided by it; 0: the largest logit wins, of equal ones the first
  double top_p = 1;        ///< nucleus sampling (Holtzman et al. 2020): the fewest likeliest ids whose
                           ///< probabilities have this sum
  std::uint64_t seed = 1;
};

/// Chooses one token after the other. Equal options and logits give equal ids.
class Sampler {
 public:
  /// Throws Error naming the option that is out of range.
  explicit Sampler(const SamplingOptions& options);

  /// An id, which `logits` (ids) has one of each. Throws Error where one is not finite.
  std::int32_t choose(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::uint64_t chosen_ = 0;  // tokens so far
  std::vector<std::int32_t> ids_;
  std::vector<double> weights_;  // of ids_, up to a common factor
};

}  // namespace annulus::eval
