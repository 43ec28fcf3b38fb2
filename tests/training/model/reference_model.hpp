#pragma once

#include <cmath>
#include <utility>

#include <annulus/attention/sequence/mask.hpp>

#include "training/model/parameters.hpp"

/// The loss of a model on a whole sequence in double precision, as plain loops: what the model is tested
/// against. Gradients of it are taken by central differences.
namespace annulus::test {

class ReferenceModel {
 public:
  using Rows = std::vector<std::vector<double>>;  // (tokens, width)

  ReferenceModel(const model::Config& config, const Mask& mask)
      : config_(config), map_(config), kinds_(config.kinds()) {
    for (const model::LayerKind& kind : kinds_) {
      frequencies_.push_back(config.frequencies(kind));
      masks_.push_back(kind.mask.empty() ? mask : Mask::parse(kind.mask, mask.tokens()));
    }
  }

  const model::ParameterMap& map() const { return map_; }

  /// Sum of the cross-entropies of all targets that are not negative.
  double loss(const std::vector<double>& parameters, std::span<const std::int32_t> tokens,
              std::span<const std::int32_t> targets) const {
    const auto weight = [&](std::int64_t offset) { return parameters.data() + offset; };
    const model::Block& block = config_.block;
    const int hidden = config_.hidden;
    Rows x(tokens.size());
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const double* row = weight(map_.embedding()) + std::int64_t{tokens[t]} * hidden;
      x[t].assign(row, row + hidden);
      if (block.scaled_embedding)
        for (double& value : x[t]) value *= double(std::sqrt(float(hidden)));
    }
    for (int i = 0; i < config_.layers; ++i) {
      const auto& p = map_.layer(i);
      const auto before = [&](std::int64_t gain) { return block.norms_before() ? norm(x, weight(gain)) : x; };
      const auto add_behind = [&](const Rows& delta, std::int64_t gain) {
        add(x, block.norms_behind() ? norm(delta, weight(gain)) : delta);
      };
      Rows qkv = project(before(p.attention_norm), weight(p.qkv), config_.qkv_width());
      if (block.qkv_bias) add_to_each(qkv, weight(p.qkv_bias));
      if (block.qk_norm != model::QkNorm::none) norm_heads(qkv, weight(p.qk_norm));
      const double* const sinks = p.sinks >= 0 ? weight(p.sinks) : nullptr;
      Rows delta = project(attention(std::move(qkv), static_cast<std::size_t>(i), sinks),
                           weight(p.attention_out), hidden);
      if (block.out_bias) add_to_each(delta, weight(p.out_bias));
      add_behind(delta, p.attention_out_norm);
      Rows gate_up = project(before(p.ffn_norm), weight(p.gate_up), 2 * config_.ffn);
      for (auto& row : gate_up) {
        for (int c = 0; c < config_.ffn; ++c) row[c] = activation(row[c]) * row[config_.ffn + c];
        row.resize(config_.ffn);
      }
      add_behind(project(gate_up, weight(p.down), hidden), p.ffn_out_norm);
    }
    Rows logits = project(norm(x, weight(map_.final_norm())), weight(map_.lm_head()), config_.vocabulary);
    for (auto& row : logits)
      for (double& logit : row) logit = capped(logit, config_.logit_cap);
    double sum = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (targets[t] < 0) continue;
      double total = 0;
      for (const double logit : logits[t]) total += std::exp(logit);
      sum += std::log(total) - logits[t][targets[t]];
    }
    return sum;
  }

  /// The derivative of the loss along `direction`, which changes `parameter` alone, by central differences.
  double slope(const std::vector<double>& parameters, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> targets, const model::Parameter& parameter,
               const std::vector<double>& direction) const {
    double squares = 0;
    for (const double x : direction) squares += x * x;
    const double step = 1e-4 / std::sqrt(squares);
    const auto moved = [&](double by) {
      std::vector<double> other = parameters;
      for (std::size_t i = 0; i < direction.size(); ++i)
        other[static_cast<std::size_t>(parameter.offset) + i] += by * direction[i];
      return loss(other, tokens, targets);
    };
    return (moved(step) - moved(-step)) / (2 * step);
  }

 private:
  double activation(double x) const {
    if (config_.block.activation == model::Activation::silu) return x / (1 + std::exp(-x));
    return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  }
  static double capped(double x, float cap) { return cap > 0 ? double(cap) * std::tanh(x / double(cap)) : x; }
  static void add(Rows& x, const Rows& y) {
    for (std::size_t t = 0; t < x.size(); ++t)
      for (std::size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
  }
  static void add_to_each(Rows& x, const double* bias) {
    for (auto& row : x)
      for (std::size_t c = 0; c < row.size(); ++c) row[c] += bias[c];
  }
  static Rows project(const Rows& x, const double* w, std::int64_t out) {
    Rows y(x.size(), std::vector<double>(static_cast<std::size_t>(out)));
    for (std::size_t t = 0; t < x.size(); ++t)
      for (std::int64_t o = 0; o < out; ++o)
        for (std::size_t c = 0; c < x[t].size(); ++c)
          y[t][o] += x[t][c] * w[o * std::int64_t(x[t].size()) + std::int64_t(c)];
    return y;
  }
  Rows norm(const Rows& x, const double* gain) const {
    Rows y = x;
    for (auto& row : y) norm(row, gain);
    return y;
  }
  void norm(std::span<double> values, const double* gain) const {
    double squares = 0;
    for (const double value : values) squares += value * value;
    const double r = 1 / std::sqrt(squares / double(values.size()) + double(config_.norm_epsilon));
    const double more = config_.block.gains_from_one ? 1 : 0;
    for (std::size_t c = 0; c < values.size(); ++c) values[c] *= r * (more + gain[c]);
  }
  // `gains`: of q and of k.
  void norm_heads(Rows& qkv, const double* gains) const {
    const std::int64_t of_q = config_.q_gains(), of_k = config_.k_gains(), q = config_.q_width(),
                       behind_k = q + config_.kv_width();
    for (auto& row : qkv)
      for (std::int64_t first = 0; first < behind_k; first += first < q ? of_q : of_k)
        norm(std::span(row).subspan(std::size_t(first), std::size_t(first < q ? of_q : of_k)),
             gains + (first < q ? 0 : of_q));
  }
  // Rotates the head that starts at `column` by its position.
  void rotate(std::vector<double>& row, std::int64_t column, std::int64_t position,
              const model::RopeFrequencies& frequencies) const {
    const int half = static_cast<int>(frequencies.inverse.size());  // of what is turned
    for (int i = 0; i < half; ++i) {
      const double angle = double(position) * double(frequencies.inverse[std::size_t(i)]);
      const double c = std::cos(angle) * frequencies.attention_factor,
                   s = std::sin(angle) * frequencies.attention_factor;
      const double a = row[column + i], b = row[column + half + i];
      row[column + i] = a * c - b * s;
      row[column + half + i] = b * c + a * s;
    }
  }
  // `sinks`: of heads; null where the layer has none.
  Rows attention(Rows qkv, std::size_t layer, const double* sinks) const {
    const MaskRule rule = masks_[layer].rule();
    const model::LayerKind& kind = kinds_[layer];
    const float own = kind.query_scale > 0 ? kind.query_scale : config_.query_scale,
                cap = kind.soft_cap > 0 ? kind.soft_cap : config_.soft_cap;
    const int d = config_.head_dim, group = config_.heads / config_.kv_heads;
    const auto tokens = static_cast<std::int64_t>(qkv.size());
    for (std::int64_t t = 0; t < tokens; ++t)
      for (int h = 0; h < config_.heads + config_.kv_heads; ++h)
        rotate(qkv[t], h * d, t, frequencies_[layer]);
    Rows out(qkv.size(), std::vector<double>(static_cast<std::size_t>(config_.heads * d)));
    for (int h = 0; h < config_.heads; ++h) {
      const int q = h * d, k = (config_.heads + h / group) * d,
                v = (config_.heads + config_.kv_heads + h / group) * d;
      for (std::int64_t t = 0; t < tokens; ++t) {
        double total = sinks == nullptr ? 0 : std::exp(sinks[h]);
        for (std::int64_t u = 0; u < tokens; ++u) {
          if (!rule.allows(t, u)) continue;
          double score = 0;
          for (int i = 0; i < d; ++i) score += qkv[t][q + i] * qkv[u][k + i];
          const double p = std::exp(capped(score / std::sqrt(own > 0 ? double(own) : double(d)), cap));
          total += p;
          for (int i = 0; i < d; ++i) out[t][q + i] += p * qkv[u][v + i];
        }
        for (int i = 0; i < d; ++i) out[t][q + i] /= total;
      }
    }
    return out;
  }

  model::Config config_;
  model::ParameterMap map_;
  // Of each layer:
  std::vector<model::LayerKind> kinds_;
  std::vector<model::RopeFrequencies> frequencies_;
  std::vector<Mask> masks_;
};

}  // namespace annulus::test
