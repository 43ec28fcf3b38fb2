#include <algorithm>
#include <annulus/base/error.hpp>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/kernels/reference.hpp"

namespace annulus::attention::reference {
namespace {

double dot(const double* a, const double* b, std::int64_t n) {
  // Eight sums at once: additions to one alone would wait for each other.
  constexpr std::int64_t lanes = 8;
  std::array<double, lanes> sums{};
  const std::int64_t whole = n - n % lanes;
  for (std::int64_t i = 0; i < whole; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (std::int64_t i = whole; i < n; ++i) sums[i - whole] += a[i] * b[i];
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// y += factor · x
void add_scaled(double* y, double factor, const double* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

/// Calls action(k) for each key that query `q` attends to, in increasing order.
template <class Action>
void for_each_key(const MaskRule& rule, std::int64_t q, Action&& action) {
  const KeyRange keys = rule.keys(q);
  for (std::int64_t k = keys.begin; k < keys.end; k += keys.stride) {
    if (rule.block_allows(q, k)) action(k);
  }
}

/// A score, and its derivative by scale · q·k.
struct Score {
  double value, derivative = 1;
};
Score score_of(double score, double soft_cap) {
  if (soft_cap == 0) return {score};
  const double t = std::tanh(score / soft_cap);
  return {soft_cap * t, 1 - t * t};
}

void check_shapes(const Array& q, const Array& k, const Array& v, const MaskRule& mask,
                  const ScoreOptions& options) {
  require(k.heads > 0 && q.heads % k.heads == 0,
          "Reference attention: {} heads are not divisible by {} kv heads: use a multiple", q.heads, k.heads);
  require(k.batch == q.batch && k.tokens == q.tokens && k.width == q.width,
          "Reference attention: k is ({}, {}, {}, {}) but q is ({}, {}, {}, {}): batch, tokens and head_dim "
          "must agree",
          k.batch, k.heads, k.tokens, k.width, q.batch, q.heads, q.tokens, q.width);
  require(v.batch == k.batch && v.heads == k.heads && v.tokens == k.tokens,
          "Reference attention: v is ({}, {}, {}, {}) but k is ({}, {}, {}, {}): all but the last must agree",
          v.batch, v.heads, v.tokens, v.width, k.batch, k.heads, k.tokens, k.width);
  require(mask.tokens == q.tokens,
          "Reference attention: the mask is for {} tokens but q has {}: they must agree", mask.tokens,
          q.tokens);
  require(options.sinks.empty() || std::ssize(options.sinks) == q.heads,
          "Reference attention: {} sinks for {} heads of q: give one for each head, or none",
          options.sinks.size(), q.heads);
}

}  // namespace

ForwardResult forward(const Array& q, const Array& k, const Array& v, const MaskRule& mask, double scale,
                      const ScoreOptions& options) {
  check_shapes(q, k, v, mask, options);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::int64_t group = q.heads / k.heads;
  ForwardResult result{Array(q.batch, q.heads, q.tokens, v.width),
                       Array(q.batch, q.heads, q.tokens, 1, -infinity)};
  std::vector<std::int64_t> keys;  // of a query, with their scores and then the exponentials of these
  std::vector<double> scores;

  for (std::int64_t b = 0; b < q.batch; ++b) {
    for (std::int64_t h = 0; h < q.heads; ++h) {
      const std::int64_t kv = h / group;
      const MaskRule rule = mask.of_head(b * q.heads + h);
      for (std::int64_t i = 0; i < q.tokens; ++i) {
        const double sink = options.sinks.empty() ? -infinity : options.sinks[static_cast<std::size_t>(h)];
        double highest = sink;
        keys.clear();
        scores.clear();
        for_each_key(rule, i, [&](std::int64_t j) {
          keys.push_back(j);
          scores.push_back(
              score_of(scale * dot(q.row(b, h, i), k.row(b, kv, j), q.width), options.soft_cap).value);
          highest = std::max(highest, scores.back());
        });
        if (highest == -infinity) continue;  // no key: 0 and −inf

        double sum = std::exp(sink - highest);
        for (double& score : scores) sum += score = std::exp(score - highest);
        for (std::size_t n = 0; n < keys.size(); ++n) {
          add_scaled(result.out.row(b, h, i), scores[n] / sum, v.row(b, kv, keys[n]), v.width);
        }
        *result.lse.row(b, h, i) = highest + std::log(sum);
      }
    }
  }
  return result;
}

Gradients backward(const BackwardInputs& inputs) {
  const auto& [q, k, v, result, d_out, mask, scale, options] = inputs;
  check_shapes(q, k, v, mask, options);
  const std::int64_t group = q.heads / k.heads;
  Gradients gradients{Array(q.batch, q.heads, q.tokens, q.width), Array(k.batch, k.heads, k.tokens, k.width),
                      Array(v.batch, v.heads, v.tokens, v.width), Array(1, std::ssize(options.sinks), 1, 1)};

  for (std::int64_t b = 0; b < q.batch; ++b) {
    for (std::int64_t h = 0; h < q.heads; ++h) {
      const std::int64_t kv = h / group;
      const MaskRule rule = mask.of_head(b * q.heads + h);
      for (std::int64_t i = 0; i < q.tokens; ++i) {
        const double lse = *result.lse.row(b, h, i);
        const double d = dot(d_out.row(b, h, i), result.out.row(b, h, i), v.width);
        if (!options.sinks.empty())
          *gradients.d_sinks.row(0, h, 0) -= std::exp(options.sinks[static_cast<std::size_t>(h)] - lse) * d;
        for_each_key(rule, i, [&](std::int64_t j) {
          const Score score =
              score_of(scale * dot(q.row(b, h, i), k.row(b, kv, j), q.width), options.soft_cap);
          const double p = std::exp(score.value - lse);
          const double d_score =
              p * (dot(d_out.row(b, h, i), v.row(b, kv, j), v.width) - d) * score.derivative;
          add_scaled(gradients.dv.row(b, kv, j), p, d_out.row(b, h, i), v.width);
          add_scaled(gradients.dq.row(b, h, i), scale * d_score, k.row(b, kv, j), k.width);
          add_scaled(gradients.dk.row(b, kv, j), scale * d_score, q.row(b, h, i), q.width);
        });
      }
    }
  }
  return gradients;
}

}  // namespace annulus::attention::reference
