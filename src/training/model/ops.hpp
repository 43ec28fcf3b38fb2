#pragma once

#include <cstdint>

#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/model/config.hpp>

/// The element-wise and row-wise pieces of a LLaMA with their gradients, for execution spaces of host and
/// device and T = float and bfloat16. Weights, activations and gradients of activations are stored as T,
/// gradients of weights and statistics as float; arithmetic is fp32. All are deterministic: sums over tokens
/// are taken in blocks of fixed size, whatever the number of threads. Gradients of weights are added to, the
/// others written unless said otherwise. Nothing is allocated and the host does not wait.
namespace annulus::model {

/// Embedding lookup: out(t, :) = scale · table(tokens(t), :). tokens (tokens), table (vocabulary, hidden),
/// out (tokens, hidden).
template <class Exec, class T>
void embed(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
           const Array2<const T, Exec>& table, const Array2<T, Exec>& out, float scale = 1);

/// d_table(tokens(t), :) += scale · d_out(t, :). `order` (tokens) lists the rows sorted by token id, rows of
/// one token in ascending order: they are summed in that order, in blocks of fixed size. `partial` (at least
/// norm_partial_rows(tokens), hidden) is workspace.
template <class Exec, class T>
void embed_backward(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                    const Array1<const std::int32_t, Exec>& order, const Array2<const T, Exec>& d_out,
                    const Array2<float, Exec>& d_table, const Array2<float, Exec>& partial, float scale = 1);

/// What the output of a norm is multiplied by.
template <class Exec, class T>
struct NormGain {
  Array1<const T, Exec> weight;
  bool from_one = false;  ///< by 1 + weight, in fp32, and not by weight

  template <class Element>
  NormGain(const Array1<Element, Exec>& weight, bool from_one = false)  // NOLINT(google-explicit-constructor)
      : weight(weight), from_one(from_one) {}
};

/// RMSNorm: out = x · r · gain with r = 1 / sqrt(mean(x²) + epsilon), kept in inverse_rms (tokens) for the
/// backward. x and out (tokens, hidden), gain (hidden).
template <class Exec, class T>
void rms_norm(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain, float epsilon,
              const Array2<T, Exec>& out, const Array1<float, Exec>& inverse_rms);

/// out = residual + x · r · gain, rounded once.
template <class Exec, class T>
void rms_norm_onto(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                   float epsilon, const Array2<const T, Exec>& residual, const Array2<T, Exec>& out,
                   const Array1<float, Exec>& inverse_rms);

/// out = x · r · gain again, from the kept r: what the backward recomputes instead of storing.
template <class Exec, class T>
void rms_norm_recompute(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                        const Array1<const float, Exec>& inverse_rms, const Array2<T, Exec>& out);

/// What rms_norm_backward writes to.
template <class Exec, class T>
struct NormGradients {
  Array2<T, Exec> d_x;          ///< (tokens, hidden), added to: the residual's gradient may be there
  Array1<float, Exec> d_gain;   ///< (hidden), added to
  Array2<float, Exec> partial;  ///< (at least norm_partial_rows(tokens), hidden): workspace
  bool fresh_d_x = false;       ///< d_x holds nothing: it is set
};
/// Gradients of x and gain, given that of the output.
template <class Exec, class T>
void rms_norm_backward(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                       const Array1<const float, Exec>& inverse_rms, const Array2<const T, Exec>& d_out,
                       const NormGradients<Exec, T>& gradients);
/// Rows of the workspace for sums over tokens.
std::int64_t norm_partial_rows(std::int64_t tokens);

/// out(t, :) = bias: what a product with a bias is added to before it is rounded (linalg::matmul). bias
/// (columns), out (tokens, columns).
template <class Exec, class T>
void fill_rows(const Exec& exec, const Array1<const T, Exec>& bias, const Array2<T, Exec>& out);

/// out(t, :) = x(t, :) + bias. x and out (tokens, columns), bias (columns).
template <class Exec, class T>
void add_to_rows(const Exec& exec, const Array1<const T, Exec>& bias, const Array2<const T, Exec>& x,
                 const Array2<T, Exec>& out);

/// The gradient of a bias: sum(c) += Σ_t x(t, c). x (tokens, columns), sum (columns), `partial` (at least
/// norm_partial_rows(tokens), columns): workspace.
template <class Exec, class T>
void add_column_sums(const Exec& exec, const Array2<const T, Exec>& x, const Array1<float, Exec>& sum,
                     const Array2<float, Exec>& partial);

/// cos and sin of position · frequencies.inverse[i], times frequencies.attention_factor, (tokens,
/// frequencies) each: the exact ones of these frequencies to one unit in the last place, at any position
/// (angles are formed and reduced in double; in float a position of a million would be off by 0.06,
/// transformers' are). `inverse`: those of the frequencies. `positions` of every row: (tokens).
template <class Exec>
void rope_table(const Exec& exec, const Array1<const std::int32_t, Exec>& positions,
                const Array1<const float, Exec>& inverse, double attention_factor,
                const Array2<float, Exec>& cosine, const Array2<float, Exec>& sine);
/// Fills `cosine` and `sine`, (tokens, frequencies) each, from positions and frequencies of the host. It
/// allocates, and the host waits.
template <class Exec>
void rope_table(const Exec& exec, const PositionMap& positions, const RopeFrequencies& frequencies,
                const Array2<float, Exec>& cosine, const Array2<float, Exec>& sine);

/// What rope_table has made: (tokens, frequencies) each, for all sequences; or one sequence after the other,
/// (sequences · tokens, frequencies), where each has its own positions. Frequency i turns elements i and
/// frequencies + i of a head; what lies behind twice as many elements stays.
template <class Exec>
struct RopeTable {
  Array2<const float, Exec> cosine, sine;
  int sequences = 1;  ///< that the table has rows of

  int tokens() const { return cosine.extent_int(0) / sequences; }
  /// Rows of the table from a sequence to the next.
  int stride() const { return sequences > 1 ? tokens() : 0; }
};

/// Queries, keys and values by head, or their gradients.
template <class Exec, class T>
struct HeadArrays {
  Array4<T, Exec> q;     ///< (batch, heads, tokens, padded_head_dim)
  Array4<T, Exec> k, v;  ///< (batch, kv_heads, tokens, padded_head_dim)
};

/// Splits qkv (batch·tokens, (heads + 2·kv_heads)·head_dim), one sequence after the other, into `heads` and
/// rotates q and k by the angles of the table, of which RopeTable says what pairs they turn.
/// Here and below, an array by rows may have some of the rows alone, from `first_row` of batch·tokens on:
/// the others are left as they are.
template <class Exec, class T>
void split_qkv_rope(const Exec& exec, const Array2<const T, Exec>& qkv, const RopeTable<Exec>& table,
                    const HeadArrays<Exec, T>& heads, std::int64_t first_row = 0);

/// The transpose of split_qkv_rope: gradients of q, k, v, as attention leaves them, back to d_qkv.
template <class Exec, class T>
void split_qkv_rope_backward(const Exec& exec, const HeadArrays<Exec, const float>& gradients,
                             const RopeTable<Exec>& table, const Array2<T, Exec>& d_qkv,
                             std::int64_t first_row = 0);

/// RMSNorm of every head of q and of k, over head_dim; or of all heads of q together, and of all of k.
template <class Exec, class T>
struct HeadNorm {
  NormGain<Exec, T>
      gain;  ///< of q, and behind it of k: (2·head_dim), or (heads·head_dim + kv_heads·head_dim)
  float epsilon = 0;
  bool joint = false;                 ///< all heads together
  Array2<float, Exec> row_sums = {};  ///< (rows, 4): workspace of joint norms
};
/// split_qkv_rope with a norm before the rotation.
template <class Exec, class T>
void split_qkv_norm_rope(const Exec& exec, const Array2<const T, Exec>& qkv, const HeadNorm<Exec, T>& norm,
                         const RopeTable<Exec>& table, const HeadArrays<Exec, T>& heads,
                         std::int64_t first_row = 0);

/// What split_qkv_norm_rope_backward writes to.
template <class Exec, class T>
struct HeadNormGradients {
  Array2<T, Exec> d_qkv;        ///< holds qkv, then its gradient
  Array1<float, Exec> d_gain;   ///< like the gain, added to
  Array2<float, Exec> partial;  ///< (at least norm_partial_rows(rows), columns of d_qkv): workspace
};
/// Gradients of qkv and of the norm's gains, given those of q, k and v.
template <class Exec, class T>
void split_qkv_norm_rope_backward(const Exec& exec, const HeadArrays<Exec, const float>& gradients,
                                  const HeadNorm<Exec, T>& norm, const RopeTable<Exec>& table,
                                  const HeadNormGradients<Exec, T>& results, std::int64_t first_row = 0);

/// (batch, heads, tokens, head_dim), attention's output, → (batch·tokens, heads·head_dim).
template <class Exec, class T>
void join_heads(const Exec& exec, const Array4<const float, Exec>& in, const Array2<T, Exec>& out);
/// (batch·tokens, heads·head_dim) → (batch, heads, tokens, head_dim).
template <class Exec, class T>
void split_heads(const Exec& exec, const Array2<const T, Exec>& in, const Array4<T, Exec>& out,
                 std::int64_t first_row = 0);

/// out = activation(gate) · up with gate_up (tokens, 2·ffn) = [gate, up], out (tokens, ffn).
template <class Exec, class T>
void gated(const Exec& exec, Activation activation, const Array2<const T, Exec>& gate_up,
           const Array2<T, Exec>& out);
/// d_gate_up from d_out; d_gate_up may be gate_up itself.
template <class Exec, class T>
void gated_backward(const Exec& exec, Activation activation, const Array2<const T, Exec>& gate_up,
                    const Array2<const T, Exec>& d_out, const Array2<T, Exec>& d_gate_up);

}  // namespace annulus::model
