#pragma once

#include <annulus/base/kokkos/tensor.hpp>

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

/// The weights of a layer (Element: const T), or their gradients (float), by their shapes.
template <class Exec, class Element>
class LayerWeights {
 public:
  using Matrix = Array2<Element, Exec>;
  using Vector = Array1<Element, Exec>;

  /// Refers to its arguments.
  LayerWeights(const Config& config, const LayerParameters& parameters, const FlatUnit<Exec, Element>& unit)
      : config_(config), at_(parameters), unit_(unit) {}

  Vector attention_norm() const { return unit_.vector(at_.attention_norm, config_.hidden); }
  Matrix qkv() const { return unit_.matrix(at_.qkv, config_.qkv_width(), config_.hidden); }
  /// Empty where the model has none.
  Vector qkv_bias() const {
    return config_.qkv_bias ? unit_.vector(at_.qkv_bias, config_.qkv_width()) : Vector();
  }
  /// (2, head_dim), of q and of k. Empty where the model has none.
  Matrix qk_norm() const {
    return config_.qk_norm ? unit_.matrix(at_.qk_norm, 2, config_.head_dim) : Matrix();
  }
  Matrix attention_out() const { return unit_.matrix(at_.attention_out, config_.hidden, config_.q_width()); }
  Vector ffn_norm() const { return unit_.vector(at_.ffn_norm, config_.hidden); }
  Matrix gate_up() const { return unit_.matrix(at_.gate_up, 2 * std::int64_t{config_.ffn}, config_.hidden); }
  Matrix down() const { return unit_.matrix(at_.down, config_.hidden, config_.ffn); }

  /// Calls action(elements) for all but the matrices of products: gains and biases.
  template <class Action>
  void for_vectors(const Action& action) const {
    action(attention_norm());
    action(ffn_norm());
    if (config_.qkv_bias) action(qkv_bias());
    if (config_.qk_norm) action(Vector(qk_norm().data(), qk_norm().size()));
  }

 private:
  const Config& config_;
  const LayerParameters& at_;
  FlatUnit<Exec, Element> unit_;
};

}  // namespace annulus::model
