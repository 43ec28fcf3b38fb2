#include <annulus/training/model/config.hpp>

#include <algorithm>
#include <cmath>

#include <utility>

#include <annulus/base/error.hpp>

#include "base/nearest.hpp"

namespace annulus::model {

namespace {

// What is beyond them is a mistake, which would end in no memory or in counts that overflow.
constexpr double most_parameters = 1e15;

constexpr std::array<std::string_view, 4> names_of_policies{"none", "full", "selective",
                                                            "sequence-selective"};

constexpr std::array<std::string_view, 6> names_of_kinds{"matrices", "lm_head", "embedding",
                                                         "norms",    "biases",  "sinks"};

/// Throws Error where `fraction` of a head is none, or `turned`, the elements that positions turn by it, is
/// no even number.
void check_fraction(std::string_view key, double fraction, int turned) {
  require(fraction > 0 && fraction <= 1,
          "{} = {}: give the part of a head that positions turn, above 0 and at most 1", key, fraction);
  require(turned >= 2 && turned % 2 == 0,
          "{} = {} of model.head_dim are {} elements that positions turn: an even number must be turned", key,
          fraction, turned);
}

}  // namespace

void Config::check() const {
  const auto positive = [](std::int64_t value, const char* field) {
    require(value > 0, "model.{} = {}: give a positive number", field, value);
  };
  positive(vocabulary, "vocabulary");
  positive(layers, "layers");
  positive(hidden, "hidden");
  positive(heads, "heads");
  positive(kv_heads, "kv_heads");
  positive(ffn, "ffn");
  kinds();
  require(heads % kv_heads == 0,
          "model.heads = {} is not divisible by model.kv_heads = {}: every kv head serves a whole number of "
          "query heads",
          heads, kv_heads);
  require(head_dim >= 16 && head_dim <= 256 && head_dim % 2 == 0,
          "model.head_dim = {}: give an even number from 16 to 256, best a multiple of 8", head_dim);
  require(rope_theta > 1.0f && std::isfinite(rope_theta),
          "model.rope_theta = {}: give a number above 1 (usually 10000 or more)", rope_theta);
  rope.check();
  check_fraction("model.rope_fraction", rope_fraction, turned_elements());
  for (const LayerKind& kind : kinds())
    if (kind.rope_fraction != 0)
      check_fraction("model.pattern: fraction", kind.rope_fraction, turned_elements(kind));
  require(norm_epsilon > 0.0f && std::isfinite(norm_epsilon),
          "model.norm_epsilon = {}: give a small positive number", norm_epsilon);
  require(query_scale >= 0 && std::isfinite(query_scale),
          "model.query_scale = {}: give a positive number, or 0 for model.head_dim", query_scale);
  require(soft_cap >= 0 && std::isfinite(soft_cap),
          "model.soft_cap = {}: give a positive number, or 0 for scores without a cap", soft_cap);
  require(logit_cap >= 0 && std::isfinite(logit_cap),
          "model.logit_cap = {}: give a positive number, or 0 for logits without a cap", logit_cap);
  const double width = hidden, of_layer = width * (double(qkv_width()) + double(q_width()) + 3 * double(ffn)),
               all = 2 * double(vocabulary) * width + layers * of_layer;
  require(all < most_parameters,
          "model.hidden = {}, model.ffn = {}, model.heads = {} and model.vocabulary = {} make a model of "
          "{:.1e} parameters: correct them",
          hidden, ffn, heads, vocabulary, all);
}

float Config::score_scale(const LayerKind& kind) const {
  const float own = kind.query_scale > 0 ? kind.query_scale : query_scale;
  return 1.0f / std::sqrt(own > 0 ? own : static_cast<float>(head_dim));
}

RopeFrequencies Config::frequencies(const LayerKind& kind) const {
  if (!kind.rotated) return {.inverse = std::vector<float>(static_cast<std::size_t>(head_dim / 2), 0.0f)};
  return rope_frequencies(kind.rope_theta > 0 ? kind.rope_theta : rope_theta, turned_elements(kind),
                          kind.scaled ? rope : RopeScaling());
}

int Config::turned_elements(const LayerKind& kind) const {
  // Cut as transformers cuts it.
  return static_cast<int>(head_dim * (kind.rope_fraction > 0 ? kind.rope_fraction : rope_fraction));
}

LayerRopes layer_ropes(const Config& config) {
  LayerRopes ropes;
  std::vector<LayerKind> seen;
  std::vector<int> of_seen;  // index of ropes.distinct
  for (const LayerKind& kind : config.kinds()) {
    const auto before = static_cast<std::size_t>(std::ranges::find(seen, kind) - seen.begin());
    if (before == seen.size()) {
      seen.push_back(kind);
      RopeFrequencies made = config.frequencies(kind);
      const auto found = std::ranges::find(ropes.distinct, made);
      of_seen.push_back(static_cast<int>(found - ropes.distinct.begin()));
      if (found == ropes.distinct.end()) ropes.distinct.push_back(std::move(made));
    }
    ropes.of_layer.push_back(of_seen[before]);
  }
  return ropes;
}

std::array<WeightMatrix, 4> layer_matrices(const Config& config) {
  const std::int64_t hidden = config.hidden, ffn = config.ffn;
  return {{{config.qkv_width(), hidden}, {hidden, config.q_width()}, {2 * ffn, hidden}, {hidden, ffn}}};
}

double dense_flops(const Config& config, std::int64_t rows) {
  double layer = 0;
  for (const WeightMatrix& weight : layer_matrices(config)) layer += double(weight.out) * double(weight.in);
  return 6.0 * double(rows) * (config.layers * layer + double(config.vocabulary) * config.hidden);
}

double attention_flops(const Config& config, double pairs) {
  // Forward Q·Kᵀ and P·V, backward two for each.
  return 12.0 * pairs * config.heads * config.head_dim * config.layers;
}

TensorKind parse_tensor_kind(std::string_view name, std::string_view field) {
  return static_cast<TensorKind>(place_of_name(name, names_of_kinds, field));
}

std::string_view name_of(Recompute recompute) {
  return names_of_policies.at(static_cast<std::size_t>(recompute));
}

Recompute parse_recompute(std::string_view name, std::string_view field) {
  return static_cast<Recompute>(place_of_name(name, names_of_policies, field));
}

}  // namespace annulus::model
