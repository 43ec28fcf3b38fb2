#pragma once

#include <array>
#include <cstdint>

#include <annulus/base/kokkos/tensor.hpp>

#include "training/model/layers/layer_tensors.hpp"
#include "training/model/parameters.hpp"

namespace annulus::model {

/// Matrices and vectors inside the flat elements of a unit (weights, or gradients in fp32), by their offsets
/// in the whole model (ParameterMap).
template <class Exec, class Element>
class FlatUnit {
 public:
  FlatUnit() = default;
  FlatUnit(const ParameterUnit& unit, const Array1<Element, Exec>& elements)
      : elements_(elements.data()), first_(unit.begin) {}

  Array2<Element, Exec> matrix(std::int64_t offset, std::int64_t rows, std::int64_t columns) const {
    return Array2<Element, Exec>(elements_ + (offset - first_), rows, columns);
  }
  Array1<Element, Exec> vector(std::int64_t offset, std::int64_t size) const {
    return Array1<Element, Exec>(elements_ + (offset - first_), size);
  }

 private:
  Element* elements_ = nullptr;
  std::int64_t first_ = 0;  // offset of the unit
};

/// A norm of a layer: what it reads, the inverse root mean squares that it leaves, and its gains.
struct LayerNorm {
  Tensor input, inverse_rms;
  std::int64_t LayerParameters::*gain;
  bool behind = false;  ///< of a product; else before one
};
inline constexpr LayerNorm attention_norm{Tensor::input, Tensor::attention_inverse_rms,
                                          &LayerParameters::attention_norm},
    ffn_norm{Tensor::middle, Tensor::ffn_inverse_rms, &LayerParameters::ffn_norm},
    attention_out_norm{Tensor::attention_delta, Tensor::attention_delta_rms,
                       &LayerParameters::attention_out_norm, true},
    ffn_out_norm{Tensor::ffn_delta, Tensor::ffn_delta_rms, &LayerParameters::ffn_out_norm, true};
inline constexpr std::array layer_norms{attention_norm, attention_out_norm, ffn_norm, ffn_out_norm};

/// The weights of a layer (Element: const T), or their gradients (float), by their shapes.
template <class Exec, class Element>
class LayerWeights {
 public:
  using Matrix = Array2<Element, Exec>;
  using Vector = Array1<Element, Exec>;

  /// Refers to its arguments.
  LayerWeights(const Config& config, const LayerParameters& parameters, const FlatUnit<Exec, Element>& unit)
      : config_(config), at_(parameters), unit_(unit) {}

  /// Gains of a norm that the block has.
  Vector gain(const LayerNorm& norm) const { return unit_.vector(at_.*norm.gain, config_.hidden); }
  Matrix qkv() const { return unit_.matrix(at_.qkv, config_.qkv_width(), config_.hidden); }
  /// Biases of q, k and v; empty where the model has none.
  Vector qkv_bias() const {
    return config_.block.qkv_bias ? unit_.vector(at_.qkv_bias, config_.qkv_width()) : Vector();
  }
  /// Gains of the norm of q, and behind them of k (Config::q_gains). Empty where the model has none.
  Vector qk_norm() const {
    return config_.block.qk_norm == QkNorm::none
               ? Vector()
               : unit_.vector(at_.qk_norm, config_.q_gains() + config_.k_gains());
  }
  Matrix attention_out() const { return unit_.matrix(at_.attention_out, config_.hidden, config_.q_width()); }
  /// Bias of the output projection; empty where the model has none.
  Vector out_bias() const {
    return config_.block.out_bias ? unit_.vector(at_.out_bias, config_.hidden) : Vector();
  }
  /// Learned logits of the heads, the sinks; empty where the layer has none.
  Vector sinks() const { return at_.sinks >= 0 ? unit_.vector(at_.sinks, config_.heads) : Vector(); }
  Matrix gate_up() const { return unit_.matrix(at_.gate_up, 2 * std::int64_t{config_.ffn}, config_.hidden); }
  Matrix down() const { return unit_.matrix(at_.down, config_.hidden, config_.ffn); }

  /// Calls action(elements) for all but the matrices of products: gains, biases and sinks.
  template <class Action>
  void for_vectors(const Action& action) const {
    for (const LayerNorm& norm : layer_norms)
      if (norm.behind ? config_.block.norms_behind() : config_.block.norms_before()) action(gain(norm));
    for (const Vector& vector : {qkv_bias(), qk_norm(), out_bias(), sinks()})
      if (vector.size() > 0) action(vector);
  }

 private:
  const Config& config_;
  const LayerParameters& at_;
  FlatUnit<Exec, Element> unit_;
};

}  // namespace annulus::model
