#pragma once

#include "training/model/layers/norm_steps.hpp"

namespace annulus::model {

/// The steps of a layer behind attention, chunk by chunk: its output product, the norms and products of the
/// feed-forward layer. LayerPasses says what a step is.
template <class Exec, class T>
class FeedForwardSteps {
  using enum Tensor;
  using Arrays = StepArrays<Exec, T>;
  using Products = LayerProducts<Exec, T>;
  using Work = LayerWork<Exec, T>;

 public:
  explicit FeedForwardSteps(const Shapes& shapes) : shapes_(shapes), norms_(shapes) {}

  /// The residual stream behind attention, and gate and up of the feed-forward layer.
  template <class Steps>
  void inputs(Steps& step, const Work* work, Chunk c, bool first) const {
    const char* const name = first ? "annulus::model::ffn_inputs" : "annulus::model::recompute";
    const auto record_middle = [&](const Arrays& a) {
      if (first) work->recorder.chunk(work->exec, "middle", a.matrix(middle, c), c);
    };
    if (block().norms_behind()) {
      step(name, {joined, attention_delta}, [&](const Arrays& a) {
        Products::project(work->exec, a.matrix(joined, c), work->weights.attention_out(),
                          a.matrix(attention_delta, c), work->weights.out_bias());
      });
      step(name, {attention_delta, attention_delta_rms, input, middle}, [&](const Arrays& a) {
        rms_norm_onto<Exec, T>(work->exec, a.matrix(attention_delta, c),
                               norms_.gain(work->weights.gain(attention_out_norm)), norms_.epsilon(),
                               a.matrix(input, c), a.matrix(middle, c), a.vector(attention_delta_rms, c));
        record_middle(a);
      });
    } else {
      step(name, {joined, input, middle}, [&](const Arrays& a) {
        const Array2<T, Exec> sum = a.matrix(middle, c);
        if (block().out_bias)
          add_to_rows<Exec, T>(work->exec, work->weights.out_bias(), a.matrix(input, c), sum);
        Products::project_onto(work->exec, a.matrix(joined, c), work->weights.attention_out(),
                               block().out_bias ? sum : a.matrix(input, c), sum);
        record_middle(a);
      });
    }
    norms_.forward(step, work, name, ffn_norm, c);
    const Tensor x = norms_.product_input(ffn_norm);
    step(name, {x, gate_up}, [&](const Arrays& a) {
      Products::project(work->exec, a.matrix(x, c), work->weights.gate_up(), a.matrix(gate_up, c));
      if (first) work->recorder.chunk(work->exec, "gate_up", a.matrix(gate_up, c), c);
    });
  }

  /// What comes behind inputs(): the layer's output.
  template <class Steps>
  void forward(Steps& step, const Work* work, Chunk c) const {
    static constexpr const char* name = "annulus::model::ffn";
    step(name, {gate_up, ffn}, [&](const Arrays& a) {
      gated<Exec, T>(work->exec, block().activation, a.matrix(gate_up, c), a.matrix(ffn, c));
      work->recorder.chunk(work->exec, "ffn", a.matrix(ffn, c), c);
    });
    if (block().norms_behind()) {
      step(name, {ffn, ffn_delta}, [&](const Arrays& a) {
        Products::project(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(ffn_delta, c));
      });
      return step(name, {ffn_delta, ffn_delta_rms, middle, last}, [&](const Arrays& a) {
        rms_norm_onto<Exec, T>(work->exec, a.matrix(ffn_delta, c),
                               norms_.gain(work->weights.gain(ffn_out_norm)), norms_.epsilon(),
                               a.matrix(middle, c), Products::rows_of(work->output, c),
                               a.vector(ffn_delta_rms, c));
      });
    }
    // `last` is the output of the last layer.
    step(name, {ffn, middle, last}, [&](const Arrays& a) {
      Products::project_onto(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(middle, c),
                             Products::rows_of(work->output, c));
    });
  }

  /// Down to the gradient of the residual stream behind attention, in d_residual. `again`: the layer has not
  /// kept what a norm behind the last product reads.
  template <class Steps>
  void backward(Steps& step, const Work* work, Chunk c, bool again) const {
    static constexpr const char* name = "annulus::model::ffn_backward";
    step(name, {gate_up, ffn}, [&](const Arrays& a) {
      gated<Exec, T>(work->exec, block().activation, a.matrix(gate_up, c), a.matrix(ffn, c));
    });
    if (block().norms_behind()) {
      if (again)
        step("annulus::model::recompute", {ffn, ffn_delta, ffn_delta_rms, d_delta}, [&](const Arrays& a) {
          Products::project(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(ffn_delta, c));
          // For the root mean squares: what it multiplies by them is not needed.
          rms_norm<Exec, T>(work->exec, a.matrix(ffn_delta, c), norms_.gain(work->weights.gain(ffn_out_norm)),
                            norms_.epsilon(), a.matrix(d_delta, c), a.vector(ffn_delta_rms, c));
        });
      norms_.behind_backward(step, work, name, ffn_out_norm, c);
    }
    const Tensor d_product = block().norms_behind() ? d_delta : d_residual;
    step(name, {ffn, d_product, d_ffn}, [&](const Arrays& a) {
      Products::project_backward(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(d_product, c),
                                 a.matrix(d_ffn, c), work->gradients.down(), work->sets_matrices(c));
      work->recorder.chunk(work->exec, "d_ffn", a.matrix(d_ffn, c), c);
    });
    step(name, {gate_up, d_ffn}, [&](const Arrays& a) {
      // In place: gate and up are not needed again.
      gated_backward<Exec, T>(work->exec, block().activation, a.matrix(gate_up, c), a.matrix(d_ffn, c),
                              a.matrix(gate_up, c));
      work->recorder.chunk(work->exec, "d_gate_up", a.matrix(gate_up, c), c);
    });
    norms_.forward_again(step, work, name, ffn_norm, c);
    norms_.product_backward(step, work, name, ffn_norm, gate_up, c,
                            [](const auto& of) { return of.gate_up(); });
  }

 private:
  const Block& block() const { return shapes_.config.block; }

  const Shapes& shapes_;
  NormSteps<Exec, T> norms_;
};

}  // namespace annulus::model
