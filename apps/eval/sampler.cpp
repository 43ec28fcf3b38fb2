#include "eval/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <annulus/base/error.hpp>

#include "base/splitmix.hpp"

namespace annulus::eval {

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  require(options.temperature >= 0 && std::isfinite(options.temperature),
          "--temperature {}: give 0 for the likeliest token each time, or a positive number",
          options.temperature);
  require(options.top_p > 0 && options.top_p <= 1, "--top-p {}: give a number above 0 and up to 1",
          options.top_p);
}

std::int32_t Sampler::choose(std::span<const float> logits) {
  const auto wrong = std::ranges::find_if_not(logits, [](float value) { return std::isfinite(value); });
  require(wrong == logits.end(),
          "the logit of id {} is {}: the weights of the model are damaged, or too large for --dtype",
          wrong - logits.begin(), wrong == logits.end() ? 0.0f : *wrong);
  const auto best = std::ranges::max_element(logits);  // the first of equal ones
  if (options_.temperature == 0) return static_cast<std::int32_t>(best - logits.begin());

  ids_.resize(logits.size());
  std::iota(ids_.begin(), ids_.end(), 0);
  if (options_.top_p < 1)
    std::ranges::stable_sort(ids_, std::greater(), [&](std::int32_t id) { return logits[id]; });
  weights_.resize(ids_.size());
  std::ranges::transform(ids_, weights_.begin(), [&](std::int32_t id) {
    return std::exp((double{logits[id]} - double{*best}) / options_.temperature);
  });
  std::partial_sum(weights_.begin(), weights_.end(), weights_.begin());
  const auto at = [&](double sum) { return std::ranges::upper_bound(weights_, sum) - weights_.begin(); };
  // 53 bits: in [0, 1).
  const double random = double(splitmix64(splitmix64(options_.seed) ^ chosen_++) >> 11) * 0x1p-53;
  const std::size_t last = weights_.size() - 1;
  const auto nucleus = std::ranges::lower_bound(weights_, options_.top_p * weights_.back());
  const double sum = nucleus == weights_.end() ? weights_.back() : *nucleus;
  return ids_[std::min(static_cast<std::size_t>(at(random * sum)), last)];
}

}  // namespace annulus::eval
