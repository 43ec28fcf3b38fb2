#include <annulus/model/ops.hpp>

#include "core/instantiate.hpp"

namespace annulus::model {

template <class Exec>
void rope_table(const Exec& exec, const PositionMap& positions, float theta,
                const Array2<float, Exec>& cosine, const Array2<float, Exec>& sine) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  const int half = cosine.extent_int(1);
  const double log_theta = Kokkos::log(static_cast<double>(theta));
  Kokkos::parallel_for(
      "annulus::model::rope_table", Policy(exec, {0, 0}, {cosine.extent_int(0), half}),
      KOKKOS_LAMBDA(const int t, const int i) {
        const double frequency = Kokkos::exp(-log_theta * static_cast<double>(i) / half);
        const double angle = static_cast<double>(positions(t)) * frequency;
        cosine(t, i) = static_cast<float>(Kokkos::cos(angle));
        sine(t, i) = static_cast<float>(Kokkos::sin(angle));
      });
}

namespace {

// Walks over every (token, head, pair) of q, k and v beside the row of the joint array that holds them side
// by side. `visit(t, column, rotated, view, head)`: column is that of the head's first element.
template <class Exec, class Q, class KV, class Visit>
void for_each_head(const Exec& exec, const char* label, const Q& q, const KV& k, const KV& v,
                   const Visit& visit) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  const int heads = q.extent_int(1), kv_heads = k.extent_int(1), tokens = q.extent_int(2),
            width = q.extent_int(3);
  Kokkos::parallel_for(
      label, Policy(exec, {0, 0}, {tokens, heads + 2 * kv_heads}), KOKKOS_LAMBDA(const int t, const int h) {
        if (h < heads) {
          visit(t, h * width, true, q, h);
        } else if (h < heads + kv_heads) {
          visit(t, h * width, true, k, h - heads);
        } else {
          visit(t, h * width, false, v, h - heads - kv_heads);
        }
      });
}

}  // namespace

template <class Exec, class T>
void split_rotate(const Exec& exec, const Array2<const T, Exec>& qkv, const Array2<const float, Exec>& cosine,
                  const Array2<const float, Exec>& sine, const Array4<T, Exec>& q, const Array4<T, Exec>& k,
                  const Array4<T, Exec>& v) {
  const int half = q.extent_int(3) / 2;
  for_each_head(
      exec, "annulus::model::split_rotate", q, k, v,
      KOKKOS_LAMBDA(const int t, const int column, const bool rotated, const Array4<T, Exec>& out,
                    const int h) {
        for (int i = 0; i < half; ++i) {
          const float c = rotated ? cosine(t, i) : 1.0f, s = rotated ? sine(t, i) : 0.0f;
          const float first = qkv(t, column + i), second = qkv(t, column + half + i);
          out(0, h, t, i) = T(first * c - second * s);
          out(0, h, t, half + i) = T(second * c + first * s);
        }
      });
}

template <class Exec, class T>
void split_rotate_backward(const Exec& exec, const Array4<const float, Exec>& dq,
                           const Array4<const float, Exec>& dk, const Array4<const float, Exec>& dv,
                           const Array2<const float, Exec>& cosine, const Array2<const float, Exec>& sine,
                           const Array2<T, Exec>& d_qkv) {
  const int half = dq.extent_int(3) / 2;
  for_each_head(
      exec, "annulus::model::split_rotate_backward", dq, dk, dv,
      KOKKOS_LAMBDA(const int t, const int column, const bool rotated, const Array4<const float, Exec>& in,
                    const int h) {
        for (int i = 0; i < half; ++i) {
          const float c = rotated ? cosine(t, i) : 1.0f, s = rotated ? sine(t, i) : 0.0f;
          const float first = in(0, h, t, i), second = in(0, h, t, half + i);
          d_qkv(t, column + i) = T(first * c + second * s);
          d_qkv(t, column + half + i) = T(second * c - first * s);
        }
      });
}

template <class Exec, class T>
void join_heads(const Exec& exec, const Array4<const float, Exec>& in, const Array2<T, Exec>& out) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<3>>;
  const int width = in.extent_int(3);
  Kokkos::parallel_for(
      "annulus::model::join_heads", Policy(exec, {0, 0, 0}, {in.extent_int(2), in.extent_int(1), width}),
      KOKKOS_LAMBDA(const int t, const int h, const int i) { out(t, h * width + i) = T(in(0, h, t, i)); });
}

template <class Exec, class T>
void split_heads(const Exec& exec, const Array2<const T, Exec>& in, const Array4<T, Exec>& out) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<3>>;
  const int width = out.extent_int(3);
  Kokkos::parallel_for(
      "annulus::model::split_heads", Policy(exec, {0, 0, 0}, {out.extent_int(2), out.extent_int(1), width}),
      KOKKOS_LAMBDA(const int t, const int h, const int i) { out(0, h, t, i) = in(t, h * width + i); });
}

#define ANNULUS_INSTANTIATE_TABLE(Exec)                                                        \
  template void rope_table(const Exec&, const PositionMap&, float, const Array2<float, Exec>&, \
                           const Array2<float, Exec>&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE_TABLE)

#define ANNULUS_INSTANTIATE(Exec, T)                                                                      \
  template void split_rotate(const Exec&, const Array2<const T, Exec>&, const Array2<const float, Exec>&, \
                             const Array2<const float, Exec>&, const Array4<T, Exec>&,                    \
                             const Array4<T, Exec>&, const Array4<T, Exec>&);                             \
  template void split_rotate_backward(const Exec&, const Array4<const float, Exec>&,                      \
                                      const Array4<const float, Exec>&, const Array4<const float, Exec>&, \
                                      const Array2<const float, Exec>&, const Array2<const float, Exec>&, \
                                      const Array2<T, Exec>&);                                            \
  template void join_heads(const Exec&, const Array4<const float, Exec>&, const Array2<T, Exec>&);        \
  template void split_heads(const Exec&, const Array2<const T, Exec>&, const Array4<T, Exec>&);
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)

}  // namespace annulus::model
