#include "training/optimizer/adamw_update.hpp"

#include <algorithm>

#include <annulus/base/error.hpp>

namespace annulus::optimizer::detail {

// Enough work for a team to hide its start, few enough elements that teams share a small model evenly.
constexpr std::int64_t chunk_size = 4096;

AdamWCoefficients adamw_coefficients(const AdamWOptions& options, std::int64_t step, double learning_rate,
                                     float gradient_scale) {
  const auto t = static_cast<double>(step);
  return {.beta1 = static_cast<float>(options.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
          .epsilon = static_cast<float>(options.epsilon),
          .step_size = static_cast<float>(learning_rate / (1.0 - std::pow(options.beta1, t))),
          .second_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, t))),
          .keep = static_cast<float>(1.0 - learning_rate * options.weight_decay),
          .gradient_scale = gradient_scale};
}

std::vector<AdamWChunk> adamw_chunks(std::int64_t size, std::span<const ParameterRange> ranges) {
  std::vector<AdamWChunk> chunks;
  std::int64_t covered = 0;
  for (const ParameterRange& range : ranges) {
    require(range.begin == covered && range.end >= range.begin && range.end <= size,
            "AdamW: the parameter range [{}, {}) does not continue at {} within {} elements: ranges cover "
            "the buffer in order without gap or overlap",
            range.begin, range.end, covered, size);
    // Cuts at multiples of the size, so that most chunks start at a multiple of a pack's width.
    for (std::int64_t begin = range.begin, end = 0; range.updated && begin < range.end; begin = end) {
      end = std::min((begin / chunk_size + 1) * chunk_size, range.end);
      chunks.push_back({begin, end, range.decay});
    }
    covered = range.end;
  }
  require(covered == size,
          "AdamW: the parameter ranges end at {}, but there are {} elements: every element needs a range",
          covered, size);
  return chunks;
}

}  // namespace annulus::optimizer::detail
