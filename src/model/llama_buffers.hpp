#pragma once

#include <string>
#include <vector>

#include <annulus/core/memory.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/model/config.hpp>
#include <annulus/model/ops.hpp>
#include <annulus/model/recompute.hpp>

/// The arrays between the kernels of a LLaMA, for a fixed number of sequences and of tokens of each. Rows are
/// the tokens of one sequence after those of the other.
namespace annulus::model {

/// What a rank computes at once.
struct Extent {
  std::int64_t sequences, tokens;  // of each sequence, on this rank
  std::int64_t rows() const { return sequences * tokens; }
};

template <class ViewType, class Exec, class... Extents>
Owned<ViewType> activation(const Exec& exec, const char* what, Extents... extents) {
  return Owned<ViewType>::uninitialized(exec, MemoryCategory::activations,
                                        std::string("annulus::model::") + what, extents...);
}

/// What one layer's forward leaves for its backward, or a part of it. Norm outputs and the SwiGLU's product
/// are cheap to make again and are not kept.
template <class Exec, class T>
struct LayerActivations {
  Owned<Array2<T, Exec>> input;  // (rows, hidden)
  // Attention's results.
  Owned<Array4<float, Exec>> out;  // (sequences, heads, tokens, head_dim)
  Owned<Array3<float, Exec>> lse;  // (sequences, heads, tokens)
  // What input and attention's results suffice for.
  Owned<Array1<float, Exec>> attention_inverse_rms;  // (rows)
  Owned<Array4<T, Exec>> q, k, v;              // (sequences, heads | kv_heads, tokens, head_dim), rotated
  Owned<Array2<T, Exec>> middle;               // (rows, hidden): after attention
  Owned<Array1<float, Exec>> ffn_inverse_rms;  // (rows)
  Owned<Array2<T, Exec>> gate_up;              // (rows, 2·ffn)

  struct Parts {
    bool input, attention, others;
  };
  LayerActivations(const Exec& exec, const LlamaConfig& c, const Extent& e, const Parts& parts) {
    if (parts.input) input = activation<Array2<T, Exec>>(exec, "input", e.rows(), c.hidden);
    if (parts.attention) {
      out = activation<Array4<float, Exec>>(exec, "out", e.sequences, c.heads, e.tokens, c.head_dim);
      lse = activation<Array3<float, Exec>>(exec, "lse", e.sequences, c.heads, e.tokens);
    }
    if (!parts.others) return;
    attention_inverse_rms = activation<Array1<float, Exec>>(exec, "attention_inverse_rms", e.rows());
    q = activation<Array4<T, Exec>>(exec, "q", e.sequences, c.heads, e.tokens, c.head_dim);
    k = activation<Array4<T, Exec>>(exec, "k", e.sequences, c.kv_heads, e.tokens, c.head_dim);
    v = activation<Array4<T, Exec>>(exec, "v", e.sequences, c.kv_heads, e.tokens, c.head_dim);
    middle = activation<Array2<T, Exec>>(exec, "middle", e.rows(), c.hidden);
    ffn_inverse_rms = activation<Array1<float, Exec>>(exec, "ffn_inverse_rms", e.rows());
    gate_up = activation<Array2<T, Exec>>(exec, "gate_up", e.rows(), 2 * c.ffn);
  }
};

/// The activations of all layers: each layer holds what the policy keeps, and one set of arrays serves them
/// in turn for the rest.
template <class Exec, class T>
class ActivationStore {
 public:
  ActivationStore(const Exec& exec, const LlamaConfig& config, const Extent& extent, Recompute recompute)
      : recompute_(recompute),
        shared_(exec, config, extent, {false, recompute == Recompute::full, recompute != Recompute::none}) {
    for (int i = 0; i < config.layers; ++i) {
      layers_.emplace_back(exec, config, extent,
                           typename LayerActivations<Exec, T>::Parts{true, recompute != Recompute::full,
                                                                     recompute == Recompute::none});
    }
  }

  Recompute recompute() const { return recompute_; }

  /// Where the activations of a layer lie.
  struct Layer {
    Array2<T, Exec> input;
    Array4<float, Exec> out;
    Array3<float, Exec> lse;
    Array1<float, Exec> attention_inverse_rms;
    Array4<T, Exec> q, k, v;
    Array2<T, Exec> middle;
    Array1<float, Exec> ffn_inverse_rms;
    Array2<T, Exec> gate_up;
  };
  Layer layer(int index) const {
    const LayerActivations<Exec, T>& own = layers_[static_cast<std::size_t>(index)];
    const LayerActivations<Exec, T>&attention = recompute_ == Recompute::full ? shared_ : own,
                                 &others = recompute_ == Recompute::none ? own : shared_;
    return {*own.input, *attention.out, *attention.lse, *others.attention_inverse_rms, *others.q,
            *others.k,  *others.v,      *others.middle, *others.ffn_inverse_rms,       *others.gate_up};
  }

 private:
  Recompute recompute_;
  std::vector<LayerActivations<Exec, T>> layers_;
  LayerActivations<Exec, T> shared_;
};

/// Arrays that live inside one layer's forward or backward and serve all layers in turn.
template <class Exec, class T>
struct LayerScratch {
  Owned<Array2<T, Exec>> normed;            // (rows, hidden)
  Owned<Array2<T, Exec>> qkv;               // (rows, (heads + 2·kv_heads)·head_dim): values, then gradients
  Owned<Array2<T, Exec>> joined;            // (rows, heads·head_dim): attention output, then its gradient
  Owned<Array2<T, Exec>> ffn;               // (rows, ffn)
  Owned<Array2<T, Exec>> d_ffn;             // (rows, ffn)
  Owned<Array2<T, Exec>> d_normed;          // (rows, hidden)
  Owned<Array4<T, Exec>> d_out;             // (sequences, heads, tokens, head_dim)
  Owned<Array3<float, Exec>> d;             // (sequences, heads, tokens): rowsum(dO∘O)
  Owned<Array4<float, Exec>> dq;            // (sequences, heads, tokens, head_dim)
  Owned<Array4<float, Exec>> dk, dv;        // (sequences, kv_heads, tokens, head_dim)
  Owned<Array2<float, Exec>> norm_partial;  // (blocks of rows, hidden)

  LayerScratch(const Exec& exec, const LlamaConfig& c, const Extent& e)
      : normed(activation<Array2<T, Exec>>(exec, "normed", e.rows(), c.hidden)),
        qkv(activation<Array2<T, Exec>>(exec, "qkv", e.rows(), (c.heads + 2 * c.kv_heads) * c.head_dim)),
        joined(activation<Array2<T, Exec>>(exec, "joined", e.rows(), c.heads * c.head_dim)),
        ffn(activation<Array2<T, Exec>>(exec, "ffn", e.rows(), c.ffn)),
        d_ffn(activation<Array2<T, Exec>>(exec, "d_ffn", e.rows(), c.ffn)),
        d_normed(activation<Array2<T, Exec>>(exec, "d_normed", e.rows(), c.hidden)),
        d_out(activation<Array4<T, Exec>>(exec, "d_out", e.sequences, c.heads, e.tokens, c.head_dim)),
        d(activation<Array3<float, Exec>>(exec, "d", e.sequences, c.heads, e.tokens)),
        dq(activation<Array4<float, Exec>>(exec, "dq", e.sequences, c.heads, e.tokens, c.head_dim)),
        dk(activation<Array4<float, Exec>>(exec, "dk", e.sequences, c.kv_heads, e.tokens, c.head_dim)),
        dv(activation<Array4<float, Exec>>(exec, "dv", e.sequences, c.kv_heads, e.tokens, c.head_dim)),
        norm_partial(
            activation<Array2<float, Exec>>(exec, "norm_partial", norm_partial_rows(e.rows()), c.hidden)) {}
};

}  // namespace annulus::model
