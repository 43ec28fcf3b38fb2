#pragma once

#include <memory>

#include <annulus/attention/sparsity/attention.hpp>
#include <annulus/attention/sparsity/audit.hpp>

#include "training/model/layers/layer_tensors.hpp"
#include "training/model/layers/layer_weights.hpp"
#include "training/model/layers/row_recorder.hpp"
#include "training/model/model.hpp"
#include "training/model/ops.hpp"

namespace annulus::model {

/// What the kernels of a layer take besides its arrays.
template <class Exec, class T>
struct LayerWork {
  const Exec& exec;
  executor::Attention<Exec, T>& attention;
  sparsity::SparseAttention<Exec, T>* sparse = nullptr;         // null: all pairs
  std::shared_ptr<const sparsity::Selection<Exec>>& selection;  // of the layer, with `sparse`
  sparsity::AttentionAudit<Exec, T>* audit = nullptr;           // of the backward pass; null: none
  int layer = 0;
  std::int64_t early_positions = 0;  // ActivationOptions::early_positions
  PositionMap positions;             // of the rows of a sequence
  LayerWeights<Exec, const T> weights;
  LayerWeights<Exec, float> gradients;  // of the weights, added to; forward takes none
  bool fresh_matrices = false;          // of gradients: their first product sets them
  RopeTable<Exec> rope;
  float scale = 1;         // of the scores
  float soft_cap = 0;      // of the scores; 0: none
  Array2<T, Exec> output;  // (rows, hidden): forward writes it
  RowRecorder& recorder;
  AttentionCalls& calls;

  /// Whether the products of this chunk are the first of the gradients of matrices.
  bool sets_matrices(Chunk c) const { return fresh_matrices && c.first == 0; }
};

}  // namespace annulus::model
