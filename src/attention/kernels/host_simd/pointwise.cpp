#include "attention/kernels/host_simd/pointwise.hpp"

#include <limits>

#include "attention/kernels/host_simd/tuning.hpp"

namespace annulus::attention::host_simd {
namespace {

template <int Vectors>
void softmax_panel(int rows, float* scores, float* highest, float* sum, float* factor) {
  Vector top[Vectors], total[Vectors];
  unrolled<Vectors>([&](auto v) { top[v] = load(highest + v * width); });
  for (int row = 0; row < rows; ++row) {
    // max gives its second argument when one is NaN: the running maximum stays a number, the exponential
    // shows the NaN.
    unrolled<Vectors>([&](auto v) { top[v] = Kokkos::max(load(scores + row * panel + v * width), top[v]); });
  }
  const Vector nothing(-std::numeric_limits<float>::infinity());
  unrolled<Vectors>([&](auto v) {
    const Vector before = load(highest + v * width);
    store(top[v], highest + v * width);
    top[v] =
        Kokkos::Experimental::condition(top[v] == nothing, Vector(0.0f), top[v]);  // −∞ − −∞ is no number
    const Vector scale = exp2(before - top[v]);
    store(scale, factor + v * width);
    total[v] = load(sum + v * width) * scale;
  });
  for (int row = 0; row < rows; ++row) {
    unrolled<Vectors>([&](auto v) {
      float* at = scores + row * panel + v * width;
      const Vector p = exp2(load(at) - top[v]);
      store(p, at);
      total[v] = total[v] + p;
    });
  }
  unrolled<Vectors>([&](auto v) { store(total[v], sum + v * width); });
}

template <int Vectors>
void cap_panel(int rows, float* scores, float cap2) {
  const Vector cap(cap2);
  for (int row = 0; row < rows; ++row) {
    unrolled<Vectors>([&](auto v) {
      float* at = scores + row * panel + v * width;
      store(cap * tanh(load(at)), at);
    });
  }
}

template <int Vectors, bool capped>
void softmax_gradient_panel(int rows, float* scores, StridedTile d_scores, const float* lse2, const float* d,
                            float inverse_cap2) {
  const Vector inverse(inverse_cap2), one(1.0f);
  for (int row = 0; row < rows; ++row) {
    const Vector row_lse(lse2[row]), row_d(d[row]);
    unrolled<Vectors>([&](auto v) {
      float* at = scores + row * panel + v * width;
      float* d_at = d_scores.data + row * static_cast<std::ptrdiff_t>(d_scores.stride) + v * width;
      const Vector score = load(at), p = exp2(score - row_lse);
      store(p, at);
      Vector gradient = p * (load(d_at) - row_d);
      if constexpr (capped) {
        // Masked scores are −∞, and 0 · ∞ is no number; max gives its second argument when one is NaN.
        const Vector t = Kokkos::max(-one, score * inverse);
        gradient = gradient * (one - t * t);
      }
      store(gradient, d_at);
    });
  }
}

}  // namespace

void softmax(int rows, int vectors, float* scores, float* highest, float* sum, float* factor) {
  with_vectors(vectors, [&](auto v) { softmax_panel<v>(rows, scores, highest, sum, factor); });
}

void cap_scores(int rows, int vectors, float* scores, float cap2) {
  with_vectors(vectors, [&](auto v) { cap_panel<v>(rows, scores, cap2); });
}

void softmax_gradient(int rows, int vectors, float* scores, StridedTile d_scores, const float* lse2,
                      const float* d, float cap2) {
  with_vectors(vectors, [&](auto v) {
    if (cap2 > 0.0f) {
      softmax_gradient_panel<v, true>(rows, scores, d_scores, lse2, d, 1.0f / cap2);
    } else {
      softmax_gradient_panel<v, false>(rows, scores, d_scores, lse2, d, 0.0f);
    }
  });
}

}  // namespace annulus::attention::host_simd
