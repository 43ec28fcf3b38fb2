#pragma once

#include <cstdint>
#include <span>

#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/linalg/matmul.hpp"
#include "training/loss/lm_head.hpp"
#include "training/model/layers/layer_arrays.hpp"
#include "training/model/layers/row_recorder.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops/token_upload.hpp"

namespace annulus::model {

/// What the kernels around the layers take besides their arrays.
template <class Exec, class T>
struct LossWork {
  const Exec& exec;
  loss::LmHeadLoss<Exec, T>& lm_head;
  TokenUpload<Exec>& ids;
  RowRecorder& recorder;
  Array1<const T, Exec> gain;              // (hidden)
  Array2<const T, Exec> weight;            // of the LM head (vocabulary, hidden)
  Array1<std::uint8_t, Exec> greedy = {};  // LmHeadLoss::Greedy, of the forward pass alone
  // Of the backward pass:
  float grad_scale = 0;
  Array2<float, Exec> d_weight = {};  // (vocabulary, hidden), added to
  Array1<float, Exec> d_gain = {};    // (hidden), added to
};
template <class Exec>
struct EmbeddingWork {
  const Exec& exec;
  TokenUpload<Exec>& ids;
  Array2<float, Exec> d_table;  // (vocabulary, hidden), added to
  float scale;                  // of the embeddings
};

/// The steps of a pass before and behind the layers, as LayerPasses has them.
template <class Exec, class T>
class OuterPasses {
  using enum Tensor;
  using Arrays = StepArrays<Exec, T>;

 public:
  explicit OuterPasses(const Shapes& shapes) : shapes_(shapes) {}

  /// Final norm and LM head, forward and backward. Leaves the gradient of the last layer's output in
  /// d_residual.
  template <class Steps>
  void loss(Steps&& step, const LossWork<Exec, T>* work) const {
    norm(step, work);
    step({last_normed, d_last_normed, logits}, [&](const Arrays& a) {
      work->ids.sort(work->exec);
      work->lm_head.forward_backward(
          work->exec, a.matrix(last_normed), work->weight, work->ids.targets(),
          {.scale = work->grad_scale, .d_hidden = a.matrix(d_last_normed), .d_weight = work->d_weight},
          a.elements(logits));
      work->recorder.all(work->exec, "d_normed", a.matrix(d_last_normed));
    });
    step({last, last_inverse_rms, d_last_normed, d_residual, row_partial}, [&](const Arrays& a) {
      rms_norm_backward<Exec, T>(work->exec, a.matrix(last), gain(*work), a.vector(last_inverse_rms),
                                 a.matrix(d_last_normed),
                                 {.d_x = a.matrix(d_residual),
                                  .d_gain = work->d_gain,
                                  .partial = a.partial(row_partial, shapes_.extent.rows()),
                                  .fresh_d_x = true});
      work->recorder.all(work->exec, "d_last", a.matrix(d_residual));
    });
  }

  /// Final norm and LM head, forward alone.
  template <class Steps>
  void evaluate(Steps&& step, const LossWork<Exec, T>* work) const {
    norm(step, work);
    step({last_normed, logits}, [&](const Arrays& a) {
      work->lm_head.forward(work->exec, a.matrix(last_normed), work->weight, work->ids.targets(),
                            a.elements(logits), work->greedy);
    });
  }

  /// Final norm and LM head, the product with one row alone: its logits, (vocabulary).
  template <class Steps>
  void row_logits(Steps&& step, const LossWork<Exec, T>* work, std::int64_t row, std::span<float> out) const {
    norm(step, work);
    step({last_normed, logits}, [&](const Arrays& a) {
      const Array2<T, Exec> hidden = a.matrix(last_normed, {.first = row, .count = 1});
      const Array2<float, Exec> of_row(a.elements(logits).data(), 1, work->weight.extent(0));
      linalg::matmul<Exec, T, float>(work->exec, {.op_b = linalg::Op::transpose}, hidden, work->weight,
                                     of_row);
      loss::cap_logits(work->exec, of_row, shapes_.config.logit_cap);
      Kokkos::deep_copy(work->exec,
                        Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace>(
                            out.data(), of_row.extent(0), of_row.extent(1)),
                        of_row);
    });
  }

  template <class Steps>
  void embedding_backward(Steps&& step, const EmbeddingWork<Exec>* work) const {
    step({d_residual, row_partial}, [&](const Arrays& a) {
      embed_backward<Exec, T>(work->exec, work->ids.tokens(), work->ids.order(), a.matrix(d_residual),
                              work->d_table, a.partial(row_partial, shapes_.extent.rows()), work->scale);
    });
  }

 private:
  template <class Steps>
  void norm(Steps&& step, const LossWork<Exec, T>* work) const {
    step({last, last_inverse_rms, last_normed}, [&](const Arrays& a) {
      rms_norm<Exec, T>(work->exec, a.matrix(last), gain(*work), shapes_.config.norm_epsilon,
                        a.matrix(last_normed), a.vector(last_inverse_rms));
      work->recorder.all(work->exec, "normed", a.matrix(last_normed));
      record_logits(*work, a.matrix(last_normed));
    });
  }

  NormGain<Exec, T> gain(const LossWork<Exec, T>& work) const {
    return {work.gain, shapes_.config.block.gains_from_one};
  }

  // The loss has the logits of a tile at a time and turns them into gradients: for the record they are formed
  // whole by the same product, where that is small.
  void record_logits(const LossWork<Exec, T>& work, const Array2<const T, Exec>& normed) const {
    const auto vocabulary = static_cast<std::int64_t>(work.weight.extent(0));
    if (!work.recorder.has_room_for(vocabulary)) return;
    const auto whole = Owned<Array2<float, Exec>>::uninitialized(  // (rows, vocabulary)
        work.exec, MemoryCategory::workspace, "annulus::model::logits", normed.extent(0), vocabulary);
    linalg::matmul<Exec, T, float>(work.exec, {.op_b = linalg::Op::transpose}, normed, work.weight,
                                   whole.view());
    loss::cap_logits(work.exec, whole.view(), shapes_.config.logit_cap);
    work.recorder.all(work.exec, "logits", whole.view());
  }

  const Shapes& shapes_;
};

}  // namespace annulus::model
