#pragma once

#include "training/model/layers/attention_steps.hpp"
#include "training/model/layers/feed_forward_steps.hpp"
#include "training/model/layers/layer_arrays.hpp"
#include "training/model/layers/layer_work.hpp"

namespace annulus::model {

/// The forward and the backward pass of a layer, step by step. A step names the tensors that it reads and
/// writes, and its kernels see no others. `Steps` runs the kernels (RunSteps), or takes down which tensor
/// lives for how long (Lifetimes); then nothing looks at `work`, which may be null.
template <class Exec, class T>
class LayerPasses {
  using enum Tensor;
  using Arrays = StepArrays<Exec, T>;
  using Attention = AttentionSteps<Exec, T>;

 public:
  using Work = LayerWork<Exec, T>;

  /// `early`: under sequence_selective there are queries on any rank whose attention is computed again.
  LayerPasses(const Shapes& shapes, Recompute policy, bool early)
      : shapes_(shapes), policy_(policy), early_(early), attention_(shapes, policy), feed_forward_(shapes) {}

  template <class Steps>
  void forward(Steps&& step, const Work* work) const {
    step({input}, [&](const Arrays& a) { work->recorder.all(work->exec, "input", a.matrix(input)); });
    attention_.inputs(step, work, true);
    attention_.attend(step, work, true);
    if (policy_ == Recompute::sequence_selective) attention_.copy_late(step, work, Attention::Late::keep);
    shapes_.for_chunks([&](Chunk c) {
      feed_forward_.inputs(step, work, c, true);
      feed_forward_.forward(step, work, c);
    });
  }

  /// d_residual holds the gradient of the layer's output and, on return, that of its input.
  template <class Steps>
  void backward(Steps&& step, const Work* work) const {
    const bool sequences = policy_ == Recompute::sequence_selective;
    const bool attends = policy_ == Recompute::full || (sequences && early_);
    if (sequences) attention_.copy_late(step, work, Attention::Late::restore);
    if (attends) {
      attention_.inputs(step, work, false);
      attention_.attend(step, work, false);
    }
    shapes_.for_chunks([&](Chunk c) {
      if (policy_ != Recompute::none) feed_forward_.inputs(step, work, c, false);
      feed_forward_.backward(step, work, c, policy_ != Recompute::none);
      attention_.out_backward(step, work, c);
    });
    step({d_residual, d_out}, [&](const Arrays& a) {
      work->recorder.all(work->exec, "d_middle", a.matrix(d_residual));
      work->recorder.heads(work->exec, "d_out", a.heads(d_out), shapes_.config.head_dim);
    });
    attention_.row_dot(step, work);
    if (policy_ != Recompute::none && !attends) attention_.inputs(step, work, false);
    if (attention_.keeps_products())
      shapes_.for_chunks(
          [&](Chunk c) { attention_.split_heads_of_inputs(step, work, c, "annulus::model::recompute"); });
    attention_.backward(step, work);
    shapes_.for_chunks([&](Chunk c) { attention_.inputs_backward(step, work, c); });
    step({d_residual},
         [&](const Arrays& a) { work->recorder.all(work->exec, "d_input", a.matrix(d_residual)); });
  }

 private:
  const Shapes& shapes_;
  Recompute policy_;
  bool early_;
  AttentionSteps<Exec, T> attention_;
  FeedForwardSteps<Exec, T> feed_forward_;
};

}  // namespace annulus::model
