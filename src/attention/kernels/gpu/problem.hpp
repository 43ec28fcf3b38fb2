#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <cstdint>

/// What the kernels for NVIDIA's GPUs are told, in plain pointers: they know no Kokkos.
namespace annulus::attention::gpu {

/// (batch, heads, rows, columns), last index contiguous.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;

  ANNULUS_FUNCTION T* at(int batch, int head, std::int64_t row) const {
    return data + batch * batch_stride + head * head_stride + row * row_stride;
  }
  /// Rows first, first + step, …
  ANNULUS_FUNCTION Rows every(std::int64_t step, std::int64_t first) const {
    return {data + first * row_stride, batch_stride, head_stride, step * row_stride};
  }
};

template <class T>
struct Input {
  Rows<const T> q, k, v;
  PositionMap q_positions, kv_positions;
  MaskRule mask;
  float scale = 1.0f;
  int batch = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float soft_cap = 0.0f;                    ///< as in Operands
  const std::int64_t* kv_listed = nullptr;  ///< as in Operands
  int v_head_dim = 0;                       ///< columns of V and O
};

template <class T>
struct ForwardProblem {
  Input<T> in;
  Rows<float> out, lse;      // lse: one element a row
  Rows<T> finished = {};     ///< as in ForwardArrays
  const T* sinks = nullptr;  ///< as in ForwardArrays, or null
};

template <class T>
struct BackwardProblem {
  Input<T> in;
  Rows<const T> d_out;
  Rows<const float> lse, d;  // one element a row
  Rows<float> dq, dk, dv;
};

inline constexpr float log2_e = 1.4426950408889634f;

}  // namespace annulus::attention::gpu
