#include "base/kokkos/exponential.hpp"
#include "base/kokkos/instantiate.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops/rows.hpp"

namespace annulus::model {

namespace {

KOKKOS_FORCEINLINE_FUNCTION float sigmoid(float x) {
  return 1.0f / (1.0f + exponential(-x));
}

// Both activations are x · sigmoid(z(x)); silu has z(x) = x.
struct Silu {
  KOKKOS_FORCEINLINE_FUNCTION static float gate(float x) { return sigmoid(x); }
  /// Derivative of the activation at x, over s = gate(x).
  KOKKOS_FORCEINLINE_FUNCTION static float slope(float x, float s) { return 1.0f + x * (1.0f - s); }
};
// x/2 · (1 + tanh(√(2/π)·(x + a·x³))) as transformers' gelu_pytorch_tanh, for (1 + tanh(y))/2 = sigmoid(2y).
struct GeluTanh {
  static constexpr float twice_root = 1.5957691216057308f, a = 0.044715f;
  KOKKOS_FORCEINLINE_FUNCTION static float gate(float x) { return sigmoid(twice_root * (x + a * x * x * x)); }
  KOKKOS_FORCEINLINE_FUNCTION static float slope(float x, float s) {
    return 1.0f + x * (1.0f - s) * twice_root * (1.0f + 3.0f * a * x * x);
  }
};

template <int width, class Function, class Exec, class T>
void gated_packs(const Exec& exec, const Array2<const T, Exec>& gate_up, const Array2<T, Exec>& out) {
  const int ffn = out.extent_int(1);
  for_each_pack<width>(
      "annulus::model::gated", exec, out.extent_int(0), ffn,
      KOKKOS_LAMBDA(const std::int64_t t, const int c) {
        const auto gate = load<width>(&gate_up(t, c)), up = load<width>(&gate_up(t, ffn + c));
        Pack<width> product;
        for (int i = 0; i < width; ++i) product[i] = gate[i] * Function::gate(gate[i]) * up[i];
        store(&out(t, c), product);
      });
}

template <int width, class Function, class Exec, class T>
void gated_backward_packs(const Exec& exec, const Array2<const T, Exec>& gate_up,
                          const Array2<const T, Exec>& d_out, const Array2<T, Exec>& d_gate_up) {
  const int ffn = d_out.extent_int(1);
  for_each_pack<width>(
      "annulus::model::gated_backward", exec, d_out.extent_int(0), ffn,
      KOKKOS_LAMBDA(const std::int64_t t, const int c) {
        const auto gate = load<width>(&gate_up(t, c)), up = load<width>(&gate_up(t, ffn + c)),
                   d = load<width>(&d_out(t, c));
        Pack<width> d_gate, d_up;
        for (int i = 0; i < width; ++i) {
          const float s = Function::gate(gate[i]);
          d_gate[i] = d[i] * up[i] * s * Function::slope(gate[i], s);
          d_up[i] = d[i] * gate[i] * s;
        }
        store(&d_gate_up(t, c), d_gate);
        store(&d_gate_up(t, ffn + c), d_up);
      });
}

/// Calls body(Function()).
template <class Body>
void with_activation(Activation activation, const Body& body) {
  if (activation == Activation::silu)
    body(Silu());
  else
    body(GeluTanh());
}

}  // namespace

template <class Exec, class T>
void gated(const Exec& exec, Activation activation, const Array2<const T, Exec>& gate_up,
           const Array2<T, Exec>& out) {
  with_activation(activation, [&](auto function) {
    with_pack_width<Exec, T>(in_packs<Exec, T>(out.extent(1), gate_up, out), [&](auto width) {
      gated_packs<decltype(width)::value, decltype(function)>(exec, gate_up, out);
    });
  });
}

template <class Exec, class T>
void gated_backward(const Exec& exec, Activation activation, const Array2<const T, Exec>& gate_up,
                    const Array2<const T, Exec>& d_out, const Array2<T, Exec>& d_gate_up) {
  with_activation(activation, [&](auto function) {
    with_pack_width<Exec, T>(in_packs<Exec, T>(d_out.extent(1), gate_up, d_out, d_gate_up), [&](auto width) {
      gated_backward_packs<decltype(width)::value, decltype(function)>(exec, gate_up, d_out, d_gate_up);
    });
  });
}

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, gated)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, gated_backward)

}  // namespace annulus::model
