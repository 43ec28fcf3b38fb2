#pragma once

#include <string>

#include <annulus/core/memory.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/model/config.hpp>
#include <annulus/model/ops.hpp>

/// The arrays between the kernels of a LLaMA, for a fixed number of tokens.
namespace annulus::model {

template <class ViewType, class Exec, class... Extents>
Owned<ViewType> activation(const Exec& exec, const char* what, Extents... extents) {
  return Owned<ViewType>::uninitialized(exec, MemoryCategory::activations,
                                        std::string("annulus::model::") + what, extents...);
}

/// What one layer's forward leaves for its backward. Norm outputs and the SwiGLU's product are cheap to make
/// again and are not kept.
template <class Exec, class T>
struct LayerActivations {
  Owned<Array2<T, Exec>> input;                      // (tokens, hidden)
  Owned<Array1<float, Exec>> attention_inverse_rms;  // (tokens)
  Owned<Array4<T, Exec>> q, k, v;                    // (1, heads | kv_heads, tokens, head_dim), rotated
  Owned<Array4<float, Exec>> out;                    // (1, heads, tokens, head_dim)
  Owned<Array3<float, Exec>> lse;                    // (1, heads, tokens)
  Owned<Array2<T, Exec>> middle;                     // (tokens, hidden): after attention
  Owned<Array1<float, Exec>> ffn_inverse_rms;        // (tokens)
  Owned<Array2<T, Exec>> gate_up;                    // (tokens, 2·ffn)

  LayerActivations(const Exec& exec, const LlamaConfig& c, std::int64_t tokens)
      : input(activation<Array2<T, Exec>>(exec, "input", tokens, c.hidden)),
        attention_inverse_rms(activation<Array1<float, Exec>>(exec, "attention_inverse_rms", tokens)),
        q(activation<Array4<T, Exec>>(exec, "q", 1, c.heads, tokens, c.head_dim)),
        k(activation<Array4<T, Exec>>(exec, "k", 1, c.kv_heads, tokens, c.head_dim)),
        v(activation<Array4<T, Exec>>(exec, "v", 1, c.kv_heads, tokens, c.head_dim)),
        out(activation<Array4<float, Exec>>(exec, "out", 1, c.heads, tokens, c.head_dim)),
        lse(activation<Array3<float, Exec>>(exec, "lse", 1, c.heads, tokens)),
        middle(activation<Array2<T, Exec>>(exec, "middle", tokens, c.hidden)),
        ffn_inverse_rms(activation<Array1<float, Exec>>(exec, "ffn_inverse_rms", tokens)),
        gate_up(activation<Array2<T, Exec>>(exec, "gate_up", tokens, 2 * c.ffn)) {}
};

/// Arrays that live inside one layer's forward or backward and serve all layers in turn.
template <class Exec, class T>
struct LayerScratch {
  Owned<Array2<T, Exec>> normed;      // (tokens, hidden)
  Owned<Array2<T, Exec>> qkv;         // (tokens, (heads + 2·kv_heads)·head_dim): values, then gradients
  Owned<Array2<T, Exec>> joined;      // (tokens, heads·head_dim): attention output, then its gradient
  Owned<Array2<T, Exec>> ffn;         // (tokens, ffn)
  Owned<Array2<T, Exec>> d_ffn;       // (tokens, ffn)
  Owned<Array2<T, Exec>> d_normed;    // (tokens, hidden)
  Owned<Array4<T, Exec>> d_out;       // (1, heads, tokens, head_dim)
  Owned<Array4<float, Exec>> dq;      // (1, heads, tokens, head_dim)
  Owned<Array4<float, Exec>> dk, dv;  // (1, kv_heads, tokens, head_dim)
  Owned<Array2<float, Exec>> norm_partial;  // (blocks of tokens, hidden)

  LayerScratch(const Exec& exec, const LlamaConfig& c, std::int64_t tokens)
      : normed(activation<Array2<T, Exec>>(exec, "normed", tokens, c.hidden)),
        qkv(activation<Array2<T, Exec>>(exec, "qkv", tokens, (c.heads + 2 * c.kv_heads) * c.head_dim)),
        joined(activation<Array2<T, Exec>>(exec, "joined", tokens, c.heads * c.head_dim)),
        ffn(activation<Array2<T, Exec>>(exec, "ffn", tokens, c.ffn)),
        d_ffn(activation<Array2<T, Exec>>(exec, "d_ffn", tokens, c.ffn)),
        d_normed(activation<Array2<T, Exec>>(exec, "d_normed", tokens, c.hidden)),
        d_out(activation<Array4<T, Exec>>(exec, "d_out", 1, c.heads, tokens, c.head_dim)),
        dq(activation<Array4<float, Exec>>(exec, "dq", 1, c.heads, tokens, c.head_dim)),
        dk(activation<Array4<float, Exec>>(exec, "dk", 1, c.kv_heads, tokens, c.head_dim)),
        dv(activation<Array4<float, Exec>>(exec, "dv", 1, c.kv_heads, tokens, c.head_dim)),
        norm_partial(
            activation<Array2<float, Exec>>(exec, "norm_partial", norm_partial_rows(tokens), c.hidden)) {}
};

}  // namespace annulus::model
