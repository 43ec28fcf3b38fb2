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
void softmax_gradient_panel(int rows, float* scores, StridedTile d_scores, const float* lse2,
                            const float* d) {
  for (int row = 0; row < rows; ++row) {
    const Vector row_lse(lse2[row]), row_d(d[row]);
    unrolled<Vectors>([&](auto v) {
      float* at = scores + row * panel + v * width;
      float* d_at = d_scores.data + row * static_cast<std::ptrdiff_t>(d_scores.stride) + v * width;
      const Vector p = exp2(load(at) - row_lse);
      store(p, at);
      store(p * (load(d_at) - row_d), d_at);
    });
  }
}

}  // namespace

void softmax(int rows, int vectors, float* scores, float* highest, float* sum, float* factor) {
  with_vectors(vectors, [&](auto v) { softmax_panel<v>(rows, scores, highest, sum, factor); });
}

void softmax_gradient(int rows, int vectors, float* scores, StridedTile d_scores, const float* lse2,
                      const float* d) {
  with_vectors(vectors, [&](auto v) { softmax_gradient_panel<v>(rows, scores, d_scores, lse2, d); });
}

}  // namespace annulus::attention::host_simd
