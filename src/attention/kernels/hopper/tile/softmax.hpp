#pragma once

#include <annulus/base/dtype.hpp>
#include <type_traits>

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/hopper/ptx/wgmma.hpp"

namespace annulus::attention::hopper {

/// Where results go. With `finished`, elements of the inputs' type, `out` is not written. Without `lse` that
/// stays as it is.
struct FinishedRows {
  gpu::Rows<float> out, lse;
  gpu::Rows<std::uint16_t> finished;
};

/// The online softmax of a warpgroup's 64 rows (FlashAttention-2, Algorithm 1): the scores of a tile of
/// `columns` keys, O, and of each row its maximum and the sum over the columns of this lane. A thread holds
/// rows `row` and `row` + 8.
///
/// A running result is the state of such a softmax: maximum = LSE / scale, sum = 1, O as it is. Merging is
/// therefore nothing but starting from there.
///
/// Below a maximum that is the LSE of n keys, probabilities are as small as 1 / n. In fp16 they would lose
/// bits from 16384 keys on (below 2⁻¹⁴), so they are multiplied by 2¹⁵, and with them O and the sum.
template <class T, int columns, int head_dim>
struct Softmax {
  static constexpr int log2_unit = std::is_same_v<T, float16> ? 15 : 0;
  static constexpr float unit = 1 << log2_unit;  ///< what a probability of 1 is
  float scores[columns / 2], out[head_dim / 2];
  float maximum[2], sum[2], correction[2];

  /// Takes up the running LSE of the rows; −∞ means that there is none.
  __device__ __forceinline__ void start_rows(const gpu::Rows<float>& lse, int batch, int head, int row,
                                             int rows, float inverse_scale) {
    float before[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      before[i] = row + 8 * i < rows ? *lse.at(batch, head, row + 8 * i) : -infinity();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      maximum[i] = before[i] * inverse_scale;
      sum[i] = before[i] != -infinity() && threadIdx.x % 4 == 0 ? unit : 0.0f;
    }
  }
  /// Starts from the running O of rows that have one, after start_rows. The first rescale() brings it to the
  /// unit. `row_columns`: of O in memory, if `clipped`.
  template <bool clipped>
  __device__ __forceinline__ void start_out(const gpu::Rows<float>& running, int batch, int head, int row,
                                            int row_columns) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool some = maximum[i] != -infinity();
      const float* const from = running.at(batch, head, row + 8 * i) + threadIdx.x % 4 * 2;
#pragma unroll
      for (int j = 0; j < head_dim / 8; ++j) {
        const float2 pair = some && (!clipped || 8 * j < row_columns)
                                ? *reinterpret_cast<const float2*>(from + 8 * j)
                                : make_float2(0.0f, 0.0f);
        out[4 * j + 2 * i] = pair.x;
        out[4 * j + 2 * i + 1] = pair.y;
      }
    }
  }

  /// scores = tanh(factor · scores). `factor` is scale / soft_cap; the softmax goes on with soft_cap as
  /// scale.
  __device__ __forceinline__ void take_tangents(float factor) {
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) scores[i] = gpu::tangent(scores[i] * factor);
  }

  /// scores = unit · exp(scale · (scores − maximum)). `factor` is scale · log2(e) > 0. What was summed before
  /// shrinks by `correction`: the sums at once, O by rescale().
  __device__ __forceinline__ void exponentiate(float factor) {
    float high[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float chain[2] = {fmaxf(maximum[i], scores[2 * i]),
                        scores[2 * i + 1]};  // two chains a row, for the latency
#pragma unroll
      for (int j = 1; j < columns / 8; ++j) {
        chain[0] = fmaxf(chain[0], scores[4 * j + 2 * i]);
        chain[1] = fmaxf(chain[1], scores[4 * j + 2 * i + 1]);
      }
      high[i] = quad_max(fmaxf(chain[0], chain[1]));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // A row that has seen no key: −∞ − (−∞) is no number; any finite number will do.
      const float subtract = high[i] == -infinity() ? 0.0f : __fmul_rn(high[i], factor);
      // Both terms are rounded alike, so that a maximum that stays corrects by exactly 1. A fused
      // multiply-add leaves the residual of one rounding, and the factors of all tiles multiply.
      correction[i] = gpu::power_of_two(__fsub_rn(__fmul_rn(maximum[i], factor), subtract));
      maximum[i] = high[i];
      const float shift = log2_unit == 0 ? -subtract : log2_unit - subtract;
      float total[2] = {0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = scores[4 * j + 2 * i + e];
          x = gpu::power_of_two(fmaf(x, factor, shift));
          total[e] += x;
        }
      }
      sum[i] = fmaf(sum[i], correction[i], total[0] + total[1]);
    }
  }

  /// `before`: the unit of O.
  __device__ __forceinline__ void rescale(float before = unit) {
    const float factor[2] = {correction[0] * (unit / before), correction[1] * (unit / before)};
#pragma unroll
    for (int j = 0; j < head_dim / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[4 * j + e] *= factor[e / 2];
    }
  }
  /// O stays as it has been read.
  __device__ __forceinline__ void keep() {
#pragma unroll
    for (int i = 0; i < 2; ++i) sum[i] /= unit;
  }

  /// Writes O and LSE. A row that has seen no key keeps 0 and −∞. `row_columns` as in start_out(). With
  /// `sinks`, `sink` joins the row first (attention::join_sinks).
  template <bool clipped, bool sinks>
  __device__ __forceinline__ void finish(const FinishedRows& to, int batch, int head, int row, int rows,
                                         int row_columns, float scale, float sink) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float total = quad_sum(sum[i]);
      if (row + 8 * i >= rows) continue;
      float inverse = total == 0.0f ? 0.0f : 1.0f / total;  // a NaN goes on
      float lse = 0.0f;
      if constexpr (sinks) {
        lse = total == 0.0f ? -infinity() : fmaf(maximum[i], scale, logf(total / unit));
        const float above = (sink - lse) * gpu::log2_e;  // ∞ without keys
        inverse *= 1.0f / (1.0f + gpu::power_of_two(above));
        lse = fmaxf(lse, sink) + __logf(1.0f + gpu::power_of_two(-fabsf(above)));
      }
      const auto store = [&](auto* pairs, const auto& pair_of) {  // a pair of this lane in every 8 columns
#pragma unroll
        for (int j = 0; j < head_dim / 8; ++j) {
          if (!clipped || 8 * j < row_columns)
            pairs[4 * j + lane % 4] = pair_of(out[4 * j + 2 * i] * inverse, out[4 * j + 2 * i + 1] * inverse);
        }
      };
      if (to.finished.data == nullptr) {
        store(reinterpret_cast<float2*>(to.out.at(batch, head, row + 8 * i)),
              [](float low, float high) { return make_float2(low, high); });
      } else {
        store(reinterpret_cast<std::uint32_t*>(to.finished.at(batch, head, row + 8 * i)), gpu::pack<T>);
      }
      if (lane % 4 == 0 && to.lse.data != nullptr) {
        *to.lse.at(batch, head, row + 8 * i) = sinks           ? lse
                                               : total == 0.0f ? -infinity()
                                                               : fmaf(maximum[i], scale, logf(total / unit));
      }
    }
  }

 private:
  __device__ __forceinline__ static constexpr float infinity() {
    return std::numeric_limits<float>::infinity();
  }
};

}  // namespace annulus::attention::hopper
