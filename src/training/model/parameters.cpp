#include "training/model/parameters.hpp"

#include <algorithm>
#include <cmath>

#include <annulus/base/error.hpp>

#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/range.hpp"
#include "base/splitmix.hpp"

namespace annulus::model {

ParameterMap::ParameterMap(const Config& config) {
  config.check();
  const float deviation = 0.02f;
  // Each layer adds two terms to the residual stream: scaled so that its variance does not grow with depth
  // (GPT-2).
  const float residual_deviation = deviation / std::sqrt(2.0f * static_cast<float>(config.layers));
  const std::int64_t q_width = config.q_width(), kv_width = config.kv_width();
  const Block& block = config.block;
  const float gain = block.gains_from_one ? 0.0f : 1.0f;
  constexpr float bias = 0.0f, sink = 0.0f;
  const std::vector<LayerKind> kinds = config.kinds();

  const auto end_unit = [&] { units_.push_back({units_.empty() ? 0 : units_.back().end, size_}); };
  embedding_ = add_matrix("embedding", config.vocabulary, config.hidden, deviation, TensorKind::embedding);
  end_unit();
  for (int i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("layers.{}.", i);
    LayerParameters layer;
    if (block.norms_before())
      layer.attention_norm = add_vector(prefix + "attention_norm", config.hidden, gain, TensorKind::norm);
    layer.qkv = add_matrix(prefix + "attention.query", q_width, config.hidden, deviation);
    add_matrix(prefix + "attention.key", kv_width, config.hidden, deviation);
    add_matrix(prefix + "attention.value", kv_width, config.hidden, deviation);
    if (block.qkv_bias) {
      layer.qkv_bias = add_vector(prefix + "attention.query_bias", q_width, bias, TensorKind::bias);
      add_vector(prefix + "attention.key_bias", kv_width, bias, TensorKind::bias);
      add_vector(prefix + "attention.value_bias", kv_width, bias, TensorKind::bias);
    }
    if (block.qk_norm != QkNorm::none) {
      layer.qk_norm = add_vector(prefix + "attention.query_norm", config.q_gains(), gain, TensorKind::norm);
      add_vector(prefix + "attention.key_norm", config.k_gains(), gain, TensorKind::norm);
    }
    layer.attention_out = add_matrix(prefix + "attention.out", config.hidden, q_width, residual_deviation);
    if (block.out_bias)
      layer.out_bias = add_vector(prefix + "attention.out_bias", config.hidden, bias, TensorKind::bias);
    if (block.norms_behind())
      layer.attention_out_norm =
          add_vector(prefix + "attention_out_norm", config.hidden, gain, TensorKind::norm);
    if (block.norms_before())
      layer.ffn_norm = add_vector(prefix + "ffn_norm", config.hidden, gain, TensorKind::norm);
    layer.gate_up = add_matrix(prefix + "ffn.gate", config.ffn, config.hidden, deviation);
    add_matrix(prefix + "ffn.up", config.ffn, config.hidden, deviation);
    layer.down = add_matrix(prefix + "ffn.down", config.hidden, config.ffn, residual_deviation);
    if (block.norms_behind())
      layer.ffn_out_norm = add_vector(prefix + "ffn_out_norm", config.hidden, gain, TensorKind::norm);
    // Last, so that their number moves no matrix of the layer.
    if (kinds[static_cast<std::size_t>(i)].sinks)
      layer.sinks = add_vector(prefix + "attention.sinks", config.heads, sink, TensorKind::sinks);
    layers_.push_back(layer);
    end_unit();
  }
  final_norm_ = add_vector("final_norm", config.hidden, gain, TensorKind::norm);
  lm_head_ = config.tied
                 ? embedding_
                 : add_matrix("lm_head", config.vocabulary, config.hidden, deviation, TensorKind::lm_head);
  end_unit();
}

std::int64_t ParameterMap::add_matrix(std::string name, std::int64_t rows, std::int64_t columns,
                                      float init_deviation, TensorKind kind) {
  const std::int64_t offset = size_;
  all_.push_back({.name = std::move(name),
                  .offset = offset,
                  .rows = rows,
                  .columns = columns,
                  .init_deviation = init_deviation,
                  .kind = kind});
  size_ += rows * columns;
  return offset;
}

std::int64_t ParameterMap::add_vector(std::string name, std::int64_t size, float init, TensorKind kind) {
  const std::int64_t offset = add_matrix(std::move(name), 1, size, 0.0f, kind);
  all_.back().init_mean = init;
  return offset;
}

const Parameter& ParameterMap::find(std::string_view name) const {
  for (const Parameter& parameter : all_)
    if (parameter.name == name) return parameter;
  fail("the model has no parameter '{}': its {} parameters run from '{}' to '{}'", name, all_.size(),
       all_.front().name, all_.back().name);
}

const Parameter& ParameterMap::at(std::int64_t element) const {
  require(element >= 0 && element < size_, "element {} of a model of {} was asked for", element, size_);
  const auto behind = std::ranges::upper_bound(all_, element, {}, &Parameter::offset);
  return *std::prev(behind);
}

std::string ParameterMap::unit_name(int index) const {
  if (index == embedding_unit()) return "the embedding";
  if (index == final_unit())
    return lm_head_unit() == final_unit() ? "the final norm and the LM head" : "the final norm";
  return fmt::format("layer {}", index - layer_unit(0));
}

namespace {

// Standard normal number of one element, by Box and Muller from two hashes.
KOKKOS_INLINE_FUNCTION float normal(std::uint64_t seed, std::uint64_t element) {
  const std::uint64_t first = splitmix64(splitmix64(seed) ^ (2 * element)),
                      second = splitmix64(splitmix64(seed) ^ (2 * element + 1));
  const double u = (static_cast<double>(first >> 11) + 1.0) * 0x1.0p-53;  // in (0, 1]
  const double v = static_cast<double>(second >> 11) * 0x1.0p-53;
  return static_cast<float>(Kokkos::sqrt(-2.0 * Kokkos::log(u)) * Kokkos::cos(6.283185307179586 * v));
}

}  // namespace

float normal_number(std::uint64_t seed, std::uint64_t element) {
  return normal(seed, element);
}

template <class Exec>
void initialize(const Exec& exec, const ParameterMap& map, std::uint64_t seed,
                const Array1<float, Exec>& parameters) {
  require(static_cast<std::int64_t>(parameters.extent(0)) == map.size(),
          "the flat buffer has {} elements, the model {}", parameters.extent(0), map.size());
  initialize_range(exec, map, seed, 0, parameters);
}

template <class Exec>
void initialize_range(const Exec& exec, const ParameterMap& map, std::uint64_t seed, std::int64_t first,
                      const Array1<float, Exec>& values) {
  const std::int64_t last = first + static_cast<std::int64_t>(values.extent(0));
  require(first >= 0 && last <= map.size(), "elements [{}, {}) of a model of {} were asked for", first, last,
          map.size());
  for (const Parameter& parameter : map.all()) {
    const std::int64_t begin = std::max(parameter.offset, first),
                       end = std::min(parameter.offset + parameter.size(), last);
    if (begin >= end) continue;
    const float mean = parameter.init_mean, deviation = parameter.init_deviation;
    Kokkos::parallel_for(
        "annulus::model::initialize", ElementRange<Exec>(exec, begin, end),
        KOKKOS_LAMBDA(const std::int64_t i) {
          values(i - first) =
              deviation == 0.0f ? mean : mean + deviation * normal(seed, static_cast<std::uint64_t>(i));
        });
  }
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, initialize)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, initialize_range)

}  // namespace annulus::model
