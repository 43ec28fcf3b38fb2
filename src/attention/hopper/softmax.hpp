#pragma once

#include "attention/gpu/problem.hpp"
#include "attention/hopper/wgmma.hpp"

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
/// A running result is the state of such a softmax: a maximum and sum with exp(scale · maximum) · sum =
/// exp(LSE), O times that sum. Merging is therefore nothing but starting from there. The sum is `start_sum`,
/// so that the maximum is low, and the largest score of what follows takes its place as it does in the first
/// step: exp(0) = 1 is exact in 16 bits. Below a maximum of LSE / scale nothing is, and in fp16
/// probabilities of many keys would have few bits.
template <int columns, int head_dim>
struct Softmax {
  static constexpr float start_sum = 1 << 20,
                         log_start_sum = 13.8629436f;  ///< a power of two: O keeps its bits

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
      maximum[i] = (before[i] - log_start_sum) * inverse_scale;
      sum[i] = before[i] != -infinity() && threadIdx.x % 4 == 0 ? start_sum : 0.0f;
    }
  }
  /// Then O of those that have one.
  __device__ __forceinline__ void start_out(const gpu::Rows<float>& running, int batch, int head, int row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool some = maximum[i] != -infinity();
      const float* const from = running.at(batch, head, row + 8 * i) + threadIdx.x % 4 * 2;
#pragma unroll
      for (int j = 0; j < head_dim / 8; ++j) {
        const float2 pair = some ? *reinterpret_cast<const float2*>(from + 8 * j) : make_float2(0.0f, 0.0f);
        out[4 * j + 2 * i] = pair.x * start_sum;
        out[4 * j + 2 * i + 1] = pair.y * start_sum;
      }
    }
  }

  /// scores = exp(scale · scores − maximum). `factor` is scale · log2(e) > 0. What was summed before shrinks
  /// by `correction`: the sums at once, O by rescale().
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
      float total[2] = {0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = scores[4 * j + 2 * i + e];
          x = gpu::power_of_two(fmaf(x, factor, -subtract));
          total[e] += x;
        }
      }
      sum[i] = fmaf(sum[i], correction[i], total[0] + total[1]);
    }
  }

  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int j = 0; j < head_dim / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[4 * j + e] *= correction[e / 2];
    }
  }

  /// Writes O and LSE. A row that has seen no key keeps 0 and −∞.
  template <class T>
  __device__ __forceinline__ void finish(const FinishedRows& to, int batch, int head, int row, int rows,
                                         float scale) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float total = quad_sum(sum[i]);
      if (row + 8 * i >= rows) continue;
      const float inverse = total == 0.0f ? 0.0f : 1.0f / total;  // a NaN goes on
      const auto store = [&](auto* pairs, const auto& pair_of) {  // a pair of this lane in every 8 columns
#pragma unroll
        for (int j = 0; j < head_dim / 8; ++j)
          pairs[4 * j + lane % 4] = pair_of(out[4 * j + 2 * i] * inverse, out[4 * j + 2 * i + 1] * inverse);
      };
      if (to.finished.data == nullptr) {
        store(reinterpret_cast<float2*>(to.out.at(batch, head, row + 8 * i)),
              [](float low, float high) { return make_float2(low, high); });
      } else {
        store(reinterpret_cast<std::uint32_t*>(to.finished.at(batch, head, row + 8 * i)), gpu::pack<T>);
      }
      if (lane % 4 == 0 && to.lse.data != nullptr) {
        *to.lse.at(batch, head, row + 8 * i) =
            total == 0.0f ? -infinity() : fmaf(maximum[i], scale, logf(total));
      }
    }
  }

 private:
  __device__ __forceinline__ static constexpr float infinity() {
    return std::numeric_limits<float>::infinity();
  }
};

}  // namespace annulus::attention::hopper
