#pragma once

#include "base/kokkos/execution/region.hpp"
#include "training/model/layers/layer_arrays.hpp"
#include "training/model/layers/layer_products.hpp"
#include "training/model/layers/layer_work.hpp"
#include "training/model/ops.hpp"

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
  explicit FeedForwardSteps(const Shapes& shapes) : shapes_(shapes) {}

  /// The residual stream behind attention, and gate and up of the feed-forward layer.
  template <class Steps>
  void inputs(Steps& step, const Work* work, Chunk c, bool first) const {
    const char* const name = first ? "annulus::model::ffn_inputs" : "annulus::model::recompute";
    const auto record_middle = [&](const Arrays& a) {
      if (first) work->recorder.chunk(work->exec, "middle", a.matrix(middle, c), c);
    };
    if (block().norms_behind()) {
      step({joined, attention_delta}, [&](const Arrays& a) {
        const Region region(name);
        const Array2<T, Exec> product = a.matrix(attention_delta, c);
        if (!block().out_bias)
          return Products::project(work->exec, a.matrix(joined, c), work->weights.attention_out(), product);
        fill_rows<Exec, T>(work->exec, work->weights.out_bias(), product);
        Products::project_onto(work->exec, a.matrix(joined, c), work->weights.attention_out(), product,
                               product);
      });
      step({attention_delta, attention_delta_rms, input, middle}, [&](const Arrays& a) {
        const Region region(name);
        rms_norm_onto<Exec, T>(work->exec, a.matrix(attention_delta, c),
                               gain(work->weights.attention_out_norm()), epsilon(), a.matrix(input, c),
                               a.matrix(middle, c), a.vector(attention_delta_rms, c));
        record_middle(a);
      });
    } else {
      step({joined, input, middle}, [&](const Arrays& a) {
        const Region region(name);
        const Array2<T, Exec> sum = a.matrix(middle, c);
        if (block().out_bias)
          add_to_rows<Exec, T>(work->exec, work->weights.out_bias(), a.matrix(input, c), sum);
        Products::project_onto(work->exec, a.matrix(joined, c), work->weights.attention_out(),
                               block().out_bias ? sum : a.matrix(input, c), sum);
        record_middle(a);
      });
    }
    if (block().norms_before())
      step({middle, ffn_inverse_rms, normed}, [&](const Arrays& a) {
        const Region region(name);
        rms_norm<Exec, T>(work->exec, a.matrix(middle, c), gain(work->weights.ffn_norm()), epsilon(),
                          a.matrix(normed, c), a.vector(ffn_inverse_rms, c));
      });
    step({product_input(), gate_up}, [&](const Arrays& a) {
      const Region region(name);
      Products::project(work->exec, a.matrix(product_input(), c), work->weights.gate_up(),
                        a.matrix(gate_up, c));
      if (first) work->recorder.chunk(work->exec, "gate_up", a.matrix(gate_up, c), c);
    });
  }

  /// What comes behind inputs(): the layer's output.
  template <class Steps>
  void forward(Steps& step, const Work* work, Chunk c) const {
    step({gate_up, ffn}, [&](const Arrays& a) {
      const Region region("annulus::model::ffn");
      gated<Exec, T>(work->exec, block().activation, a.matrix(gate_up, c), a.matrix(ffn, c));
      work->recorder.chunk(work->exec, "ffn", a.matrix(ffn, c), c);
    });
    if (block().norms_behind()) {
      step({ffn, ffn_delta}, [&](const Arrays& a) {
        const Region region("annulus::model::ffn");
        Products::project(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(ffn_delta, c));
      });
      return step({ffn_delta, ffn_delta_rms, middle, last}, [&](const Arrays& a) {
        const Region region("annulus::model::ffn");
        rms_norm_onto<Exec, T>(work->exec, a.matrix(ffn_delta, c), gain(work->weights.ffn_out_norm()),
                               epsilon(), a.matrix(middle, c), Products::rows_of(work->output, c),
                               a.vector(ffn_delta_rms, c));
      });
    }
    // `last` is the output of the last layer.
    step({ffn, middle, last}, [&](const Arrays& a) {
      const Region region("annulus::model::ffn");
      Products::project_onto(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(middle, c),
                             Products::rows_of(work->output, c));
    });
  }

  /// Down to the gradient of the residual stream behind attention, in d_residual. `again`: the layer has not
  /// kept what a norm behind the last product reads.
  template <class Steps>
  void backward(Steps& step, const Work* work, Chunk c, bool again) const {
    static constexpr const char* name = "annulus::model::ffn_backward";
    step({gate_up, ffn}, [&](const Arrays& a) {
      const Region region(name);
      gated<Exec, T>(work->exec, block().activation, a.matrix(gate_up, c), a.matrix(ffn, c));
    });
    if (block().norms_behind()) {
      if (again)
        step({ffn, ffn_delta, ffn_delta_rms, d_delta}, [&](const Arrays& a) {
          const Region region("annulus::model::recompute");
          Products::project(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(ffn_delta, c));
          // For the root mean squares: what it multiplies by them is not needed.
          rms_norm<Exec, T>(work->exec, a.matrix(ffn_delta, c), gain(work->weights.ffn_out_norm()), epsilon(),
                            a.matrix(d_delta, c), a.vector(ffn_delta_rms, c));
        });
      step({ffn_delta, ffn_delta_rms, d_residual, d_delta, norm_partial}, [&](const Arrays& a) {
        const Region region(name);
        rms_norm_backward<Exec, T>(work->exec, a.matrix(ffn_delta, c), gain(work->weights.ffn_out_norm()),
                                   a.vector(ffn_delta_rms, c), a.matrix(d_residual, c),
                                   {.d_x = a.matrix(d_delta, c),
                                    .d_gain = work->gradients.ffn_out_norm(),
                                    .partial = a.partial(norm_partial, c.count),
                                    .fresh_d_x = true});
      });
    }
    const Tensor d_product = block().norms_behind() ? d_delta : d_residual;
    step({ffn, d_product, d_ffn}, [&](const Arrays& a) {
      const Region region(name);
      Products::project_backward(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(d_product, c),
                                 a.matrix(d_ffn, c), work->gradients.down(), work->sets_matrices(c));
      work->recorder.chunk(work->exec, "d_ffn", a.matrix(d_ffn, c), c);
    });
    step({gate_up, d_ffn}, [&](const Arrays& a) {
      const Region region(name);
      // In place: gate and up are not needed again.
      gated_backward<Exec, T>(work->exec, block().activation, a.matrix(gate_up, c), a.matrix(d_ffn, c),
                              a.matrix(gate_up, c));
      work->recorder.chunk(work->exec, "d_gate_up", a.matrix(gate_up, c), c);
    });
    if (!block().norms_before())
      return step({middle, gate_up, d_residual}, [&](const Arrays& a) {
        const Region region(name);
        Products::project_backward_onto(work->exec, a.matrix(middle, c), work->weights.gate_up(),
                                        a.matrix(gate_up, c), a.matrix(d_residual, c),
                                        work->gradients.gate_up(), work->sets_matrices(c));
      });
    step({middle, ffn_inverse_rms, normed}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm_recompute<Exec, T>(work->exec, a.matrix(middle, c), gain(work->weights.ffn_norm()),
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
      rms_norm_backward<Exec, T>(work->exec, a.matrix(middle, c), gain(work->weights.ffn_norm()),
                                 a.vector(ffn_inverse_rms, c), a.matrix(d_normed, c),
                                 {.d_x = a.matrix(d_residual, c),
                                  .d_gain = work->gradients.ffn_norm(),
                                  .partial = a.partial(norm_partial, c.count)});
    });
  }

 private:
  const Block& block() const { return shapes_.config.block; }
  /// What the first product reads.
  Tensor product_input() const { return block().norms_before() ? normed : middle; }
  float epsilon() const { return shapes_.config.norm_epsilon; }
  NormGain<Exec, T> gain(const Array1<const T, Exec>& weight) const {
    return {weight, block().gains_from_one};
  }

  const Shapes& shapes_;
};

}  // namespace annulus::model
