#include "base/kokkos/exponential.hpp"
#include "base/kokkos/instantiate.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops/rows.hpp"

namespace annulus::model {

namespace {

KOKKOS_FORCEINLINE_FUNCTION float sigmoid(float x) {
  return 1.0f / (1.0f + exponential(-x));
}

template <int width, class Exec, class T>
void swiglu_packs(const Exec& exec, const Array2<const T, Exec>& gate_up, const Array2<T, Exec>& out) {
  const int ffn = out.extent_int(1);
  for_each_pack<width>(
      "annulus::model::swiglu", exec, out.extent_int(0), ffn, KOKKOS_LAMBDA(const int t, const int c) {
        const auto gate = load<width>(&gate_up(t, c)), up = load<width>(&gate_up(t, ffn + c));
        Pack<width> product;
        for (int i = 0; i < width; ++i) product[i] = gate[i] * sigmoid(gate[i]) * up[i];
        store(&out(t, c), product);
      });
}

template <int width, class Exec, class T>
void swiglu_backward_packs(const Exec& exec, const Array2<const T, Exec>& gate_up,
                           const Array2<const T, Exec>& d_out, const Array2<T, Exec>& d_gate_up) {
  const int ffn = d_out.extent_int(1);
  for_each_pack<width>(
      "annulus::model::swiglu_backward", exec, d_out.extent_int(0), ffn,
      KOKKOS_LAMBDA(const int t, const int c) {
        const auto gate = load<width>(&gate_up(t, c)), up = load<width>(&gate_up(t, ffn + c)),
                   d = load<width>(&d_out(t, c));
        Pack<width> d_gate, d_up;
        for (int i = 0; i < width; ++i) {
          const float s = sigmoid(gate[i]);
          d_gate[i] = d[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
          d_up[i] = d[i] * gate[i] * s;
        }
        store(&d_gate_up(t, c), d_gate);
        store(&d_gate_up(t, ffn + c), d_up);
      });
}

}  // namespace

template <class Exec, class T>
void swiglu(const Exec& exec, const Array2<const T, Exec>& gate_up, const Array2<T, Exec>& out) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(out.extent(1), gate_up, out),
                           [&](auto width) { swiglu_packs<decltype(width)::value>(exec, gate_up, out); });
}

template <class Exec, class T>
void swiglu_backward(const Exec& exec, const Array2<const T, Exec>& gate_up,
                     const Array2<const T, Exec>& d_out, const Array2<T, Exec>& d_gate_up) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(d_out.extent(1), gate_up, d_out, d_gate_up), [&](auto width) {
    swiglu_backward_packs<decltype(width)::value>(exec, gate_up, d_out, d_gate_up);
  });
}

#define ANNULUS_INSTANTIATE(Exec, T)                                                                     \
  template void swiglu(const Exec&, const Array2<const T, Exec>&, const Array2<T, Exec>&);               \
  template void swiglu_backward(const Exec&, const Array2<const T, Exec>&, const Array2<const T, Exec>&, \
                                const Array2<T, Exec>&);
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::model
