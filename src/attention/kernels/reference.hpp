#pragma once

#include <cstdint>
#include <vector>

#include <annulus/attention/sequence/mask_rule.hpp>

/// Attention in double precision, written to be read. Every other kernel and every schedule is compared with
/// it.
namespace annulus::attention::reference {

/// A dense (batch, heads, tokens, width) array of doubles; width 1 for LSE and D.
struct Array {
  std::int64_t batch = 0, heads = 0, tokens = 0, width = 0;
  std::vector<double> values;

  Array() = default;
  Array(std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t width, double value = 0.0)
      : batch(batch),
        heads(heads),
        tokens(tokens),
        width(width),
        values(static_cast<std::size_t>(batch * heads * tokens * width), value) {}

  double* row(std::int64_t b, std::int64_t h, std::int64_t t) {
    return values.data() + ((b * heads + h) * tokens + t) * width;
  }
  const double* row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return values.data() + ((b * heads + h) * tokens + t) * width;
  }
};

struct ForwardResult {
  Array out;  ///< (batch, heads, tokens, v_head_dim)
  Array lse;  ///< (batch, heads, tokens, 1), of keys and sinks; −inf for rows without either
};

/// What becomes of scaled scores.
struct ScoreOptions {
  double soft_cap = 0;        ///< cap · tanh(score / cap); 0: none
  std::vector<double> sinks;  ///< a logit of each head of q, which joins the softmax; or none
};

/// Softmax attention over a whole sequence: q (batch, heads, tokens, head_dim), k (batch, kv_heads, tokens,
/// head_dim), v (batch, kv_heads, tokens, v_head_dim). Arrays of `mask` are the host's.
ForwardResult forward(const Array& q, const Array& k, const Array& v, const MaskRule& mask, double scale,
                      const ScoreOptions& options = {});

struct Gradients {
  Array dq, dk, dv;  ///< shaped like q, k, v
  Array d_sinks;     ///< (1, heads, 1, 1); without sinks (1, 0, 1, 1)
};

/// What a backward pass needs: the arguments of forward and its result, and the gradient of `out`. Refers to
/// them.
struct BackwardInputs {
  const Array &q, &k, &v;
  const ForwardResult& result;
  const Array& d_out;  ///< (batch, heads, tokens, v_head_dim)
  MaskRule mask;
  double scale;
  ScoreOptions options = {};
};

/// Gradients of Σ out∘d_out.
Gradients backward(const BackwardInputs& inputs);

}  // namespace annulus::attention::reference
