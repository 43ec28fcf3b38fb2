#pragma once

#include "base/kokkos/execution/region.hpp"
#include "training/model/layers/layer_arrays.hpp"
#include "training/model/layers/layer_products.hpp"
#include "training/model/layers/layer_work.hpp"
#include "training/model/ops.hpp"

namespace annulus::model {

/// The steps of a layer behind attention, chunk by chunk: its output product, the norm and the SwiGLU of the
/// feed-forward layer. LayerPasses says what a step is.
template <class Exec, class T>
class FeedForwardSteps {
  using enum Tensor;
  using Arrays = StepArrays<Exec, T>;
  using Products = LayerProducts<Exec, T>;
  using Work = LayerWork<Exec, T>;

 public:
  explicit FeedForwardSteps(const Shapes& shapes) : shapes_(shapes) {}

  /// The residual stream behind attention, and gate and up of the feed-forward layer.
  template <class Steps>
  void inputs(Steps& step, const Work* work, Chunk c, bool first) const {
    const char* const name = first ? "annulus::model::ffn_inputs" : "annulus::model::recompute";
    step({joined, input, middle}, [&](const Arrays& a) {
      const Region region(name);
      Products::project_onto(work->exec, a.matrix(joined, c), work->weights.attention_out(),
                             a.matrix(input, c), a.matrix(middle, c));
      if (first) work->recorder.chunk(work->exec, "middle", a.matrix(middle, c), c);
    });
    step({middle, ffn_inverse_rms, normed}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm<Exec, T>(work->exec, a.matrix(middle, c), work->weights.ffn_norm(), epsilon(),
                        a.matrix(normed, c), a.vector(ffn_inverse_rms, c));
    });
    step({normed, gate_up}, [&](const Arrays& a) {
      const Region region(name);
      Products::project(work->exec, a.matrix(normed, c), work->weights.gate_up(), a.matrix(gate_up, c));
      if (first) work->recorder.chunk(work->exec, "gate_up", a.matrix(gate_up, c), c);
    });
  }

  /// What comes behind inputs(): the layer's output.
  template <class Steps>
  void forward(Steps& step, const Work* work, Chunk c) const {
    step({gate_up, ffn}, [&](const Arrays& a) {
      const Region region("annulus::model::ffn");
      swiglu<Exec, T>(work->exec, a.matrix(gate_up, c), a.matrix(ffn, c));
      work->recorder.chunk(work->exec, "ffn", a.matrix(ffn, c), c);
    });
    // `last` is the output of the last layer.
    step({ffn, middle, last}, [&](const Arrays& a) {
      const Region region("annulus::model::ffn");
      Products::project_onto(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(middle, c),
                             Products::rows_of(work->output, c));
    });
  }

  /// Down to the gradient of the residual stream behind attention, in d_residual.
  template <class Steps>
  void backward(Steps& step, const Work* work, Chunk c) const {
    static constexpr const char* name = "annulus::model::ffn_backward";
    step({gate_up, ffn}, [&](const Arrays& a) {
      const Region region(name);
      swiglu<Exec, T>(work->exec, a.matrix(gate_up, c), a.matrix(ffn, c));
    });
    step({ffn, d_residual, d_ffn}, [&](const Arrays& a) {
      const Region region(name);
      Products::project_backward(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(d_residual, c),
                                 a.matrix(d_ffn, c), work->gradients.down(), work->sets_matrices(c));
      work->recorder.chunk(work->exec, "d_ffn", a.matrix(d_ffn, c), c);
    });
    step({gate_up, d_ffn}, [&](const Arrays& a) {
      const Region region(name);
      // In place: gate and up are not needed again.
      swiglu_backward<Exec, T>(work->exec, a.matrix(gate_up, c), a.matrix(d_ffn, c), a.matrix(gate_up, c));
      work->recorder.chunk(work->exec, "d_gate_up", a.matrix(gate_up, c), c);
    });
    step({middle, ffn_inverse_rms, normed}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm_recompute<Exec, T>(work->exec, a.matrix(middle, c), work->weights.ffn_norm(),
                                  a.vector(ffn_inverse_rms, c), a.matrix(normed, c));
    });
    step({normed, gate_up, d_normed}, [&](const Arrays& a) {
      const Region region(name);
      Products::project_backward(work->exec, a.matrix(normed, c), work->weights.gate_up(),
                                 a.matrix(gate_up, c), a.matrix(d_normed, c), work->gradients.gate_up(),
                                 work->sets_matrices(c));
    });
    step({middle, ffn_inverse_rms, d_normed, d_residual, norm_partial}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm_backward<Exec, T>(work->exec, a.matrix(middle, c), work->weights.ffn_norm(),
                                 a.vector(ffn_inverse_rms, c), a.matrix(d_normed, c),
                                 {.d_x = a.matrix(d_residual, c),
                                  .d_gain = work->gradients.ffn_norm(),
                                  .partial = a.partial(norm_partial, c.count)});
    });
  }

 private:
  float epsilon() const { return shapes_.config.norm_epsilon; }

  const Shapes& shapes_;
};

}  // namespace annulus::model
