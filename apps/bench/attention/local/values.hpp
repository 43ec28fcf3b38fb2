#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include <annulus/attention/plan/plan.hpp>

#include "base/splitmix.hpp"

namespace annulus::bench {

/// About normally distributed (mean 0, variance 1), a pure function of its arguments: every number of ranks,
/// every layout and every device has the same problem. `place` is a global position, or a token id for
/// embeddings.
KOKKOS_INLINE_FUNCTION float seeded_value(std::uint64_t seed, plan::Tensor tensor, std::int64_t batch,
                                          std::int64_t head, std::int64_t place, int dim) {
  const std::uint64_t numbers[] = {static_cast<std::uint64_t>(tensor), static_cast<std::uint64_t>(batch),
                                   static_cast<std::uint64_t>(head), static_cast<std::uint64_t>(place),
                                   static_cast<std::uint64_t>(dim)};
  std::uint64_t bits = splitmix64(seed);
  for (const std::uint64_t number : numbers) bits = mix_bits(bits + splitmix_step * (number + 1));
  return near_normal(bits);
}

/// Queries and keys whose scores have vertical and slash lines, as those of trained models do (MTraining,
/// Theorem 3.1). Half of the head dimensions hold one constant vector behind rotary position embeddings: a
/// key at its own position, a query summed over `distances` positions, its own and earlier ones. A score is
/// high where the key stands at one of these distances, which are others for each head: a slash. One
/// dimension is a constant of the queries that few keys answer to, others for each kv head: verticals. The
/// rest is random.
class VerticalSlashValues {
 public:
  VerticalSlashValues(std::uint64_t seed, std::int64_t tokens, int head_dim)
      : seed_(seed), tokens_(tokens), head_dim_(head_dim), pairs_(head_dim / 4) {}

  /// `tensor` is q or k.
  KOKKOS_INLINE_FUNCTION float operator()(plan::Tensor tensor, std::int64_t batch, std::int64_t head,
                                          std::int64_t position, int dim) const {
    const bool query = tensor == plan::Tensor::q;
    if (dim < 2 * pairs_) return query ? rotated_query(head, position, dim) : rotated(position, dim);
    if (dim == 2 * pairs_) {
      // A score of `vertical_score` for the keys that are verticals.
      const float answer = vertical_score / query_constant * Kokkos::sqrt(static_cast<float>(head_dim_));
      return query ? query_constant : is_vertical(batch, head, position) ? answer : 0.0f;
    }
    return seeded_value(seed_, tensor, batch, head, position, dim);
  }

 private:
  static constexpr int distances = 4;
  static constexpr float slash_score = 8, vertical_score = 6, query_constant = 8;
  static constexpr int keys_of_vertical = 1024;  ///< one key in so many is a vertical
  static constexpr double theta = 500000;        ///< of the rotary embeddings, as Llama 3 has it

  KOKKOS_INLINE_FUNCTION float uniform(std::int64_t a, std::int64_t b) const {
    const std::uint64_t bits =
        mix_bits(mix_bits(seed_ + static_cast<std::uint64_t>(a)) + static_cast<std::uint64_t>(b));
    return static_cast<float>(bits >> 40) / static_cast<float>(1 << 24);
  }
  /// The slashes of a query head: 0, and others of which near ones are the likelier.
  KOKKOS_INLINE_FUNCTION std::int64_t distance(std::int64_t head, int number) const {
    if (number == 0) return 0;
    const float share = uniform(head, number);
    return static_cast<std::int64_t>(share * share * static_cast<float>(tokens_));
  }
  KOKKOS_INLINE_FUNCTION bool is_vertical(std::int64_t batch, std::int64_t kv_head,
                                          std::int64_t position) const {
    return uniform((batch << 20) + kv_head, position) < 1.0f / keys_of_vertical;
  }
  /// (1, 0) of each pair of dimensions, rotated to a position.
  KOKKOS_INLINE_FUNCTION float rotated(std::int64_t position, int dim) const {
    const double angle = static_cast<double>(position) *
                         Kokkos::pow(theta, -static_cast<double>(dim / 2) / static_cast<double>(pairs_));
    return static_cast<float>(dim % 2 == 0 ? Kokkos::cos(angle) : Kokkos::sin(angle));
  }
  KOKKOS_INLINE_FUNCTION float rotated_query(std::int64_t head, std::int64_t position, int dim) const {
    float sum = 0;
    for (int number = 0; number < distances; ++number) sum += rotated(position - distance(head, number), dim);
    // All pairs together score `slash_score` where query and key meet.
    return sum * slash_score / static_cast<float>(pairs_) * Kokkos::sqrt(static_cast<float>(head_dim_));
  }

  std::uint64_t seed_;
  std::int64_t tokens_;
  int head_dim_, pairs_;  ///< pairs of dimensions that are rotated
};

}  // namespace annulus::bench
