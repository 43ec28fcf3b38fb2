#pragma once

#include "training/model/layers/layer_arrays.hpp"
#include "training/model/layers/layer_products.hpp"
#include "training/model/layers/layer_work.hpp"
#include "training/model/ops.hpp"

namespace annulus::model {

/// The steps of a layer's norms, and of the products that read the residual stream or its norm. LayerPasses
/// says what a step is, and `name` is that of its region.
template <class Exec, class T>
class NormSteps {
  using enum Tensor;
  using Arrays = StepArrays<Exec, T>;
  using Products = LayerProducts<Exec, T>;
  using Work = LayerWork<Exec, T>;

 public:
  explicit NormSteps(const Shapes& shapes) : shapes_(shapes) {}

  float epsilon() const { return shapes_.config.norm_epsilon; }
  NormGain<Exec, T> gain(const Array1<const T, Exec>& weight) const {
    return {weight, block().gains_from_one};
  }

  /// What the product behind a norm reads: the norm, or its input where norms do not stand before products.
  Tensor product_input(const LayerNorm& norm) const { return block().norms_before() ? normed : norm.input; }

  /// The norm, where norms stand before products.
  template <class Steps>
  void forward(Steps& step, const Work* work, const char* name, const LayerNorm& norm, Chunk c) const {
    if (!block().norms_before()) return;
    step(name, {norm.input, norm.inverse_rms, normed}, [&](const Arrays& a) {
      rms_norm<Exec, T>(work->exec, a.matrix(norm.input, c), gain(work->weights.gain(norm)), epsilon(),
                        a.matrix(normed, c), a.vector(norm.inverse_rms, c));
    });
  }

  /// Recomputes the norm from its input and the inverse root mean squares, which are kept.
  template <class Steps>
  void forward_again(Steps& step, const Work* work, const char* name, const LayerNorm& norm, Chunk c) const {
    if (!block().norms_before()) return;
    step(name, {norm.input, norm.inverse_rms, normed}, [&](const Arrays& a) {
      rms_norm_recompute<Exec, T>(work->exec, a.matrix(norm.input, c), gain(work->weights.gain(norm)),
                                  a.vector(norm.inverse_rms, c), a.matrix(normed, c));
    });
  }

  /// Gradients of the product behind a norm, given its own in `d_product`, and of the norm: that of the
  /// norm's input is added to d_residual. `matrix_of`: the product's matrix among weights or gradients.
  template <class Steps, class MatrixOf>
  void product_backward(Steps& step, const Work* work, const char* name, const LayerNorm& norm,
                        Tensor d_product, Chunk c, const MatrixOf& matrix_of) const {
    if (!block().norms_before())
      return step(name, {norm.input, d_product, d_residual}, [&](const Arrays& a) {
        Products::project_backward_onto(work->exec, a.matrix(norm.input, c), matrix_of(work->weights),
                                        a.matrix(d_product, c), a.matrix(d_residual, c),
                                        matrix_of(work->gradients), work->sets_matrices(c));
      });
    step(name, {normed, d_product, d_normed}, [&](const Arrays& a) {
      Products::project_backward(work->exec, a.matrix(normed, c), matrix_of(work->weights),
                                 a.matrix(d_product, c), a.matrix(d_normed, c), matrix_of(work->gradients),
                                 work->sets_matrices(c));
    });
    step(name, {norm.input, norm.inverse_rms, d_normed, d_residual, norm_partial},
         [&](const Arrays& a) { backward(*work, a, norm, d_normed, d_residual, c, false); });
  }

  /// The gradient, in d_delta, of what a norm behind a product reads, whose output the residual stream adds.
  template <class Steps>
  void behind_backward(Steps& step, const Work* work, const char* name, const LayerNorm& norm,
                       Chunk c) const {
    step(name, {norm.input, norm.inverse_rms, d_residual, d_delta, norm_partial},
         [&](const Arrays& a) { backward(*work, a, norm, d_residual, d_delta, c, true); });
  }

 private:
  void backward(const Work& work, const Arrays& a, const LayerNorm& norm, Tensor d_out, Tensor d_x, Chunk c,
                bool fresh_d_x) const {
    rms_norm_backward<Exec, T>(work.exec, a.matrix(norm.input, c), gain(work.weights.gain(norm)),
                               a.vector(norm.inverse_rms, c), a.matrix(d_out, c),
                               {.d_x = a.matrix(d_x, c),
                                .d_gain = work.gradients.gain(norm),
                                .partial = a.partial(norm_partial, c.count),
                                .fresh_d_x = fresh_d_x});
  }

  const Block& block() const { return shapes_.config.block; }

  const Shapes& shapes_;
};

}  // namespace annulus::model
