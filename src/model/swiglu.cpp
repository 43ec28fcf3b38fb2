#include <annulus/model/ops.hpp>

#include "core/instantiate.hpp"

namespace annulus::model {

template <class Exec, class T>
void swiglu(const Exec& exec, const Array2<const T, Exec>& gate_up, const Array2<T, Exec>& out) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  const int ffn = out.extent_int(1);
  Kokkos::parallel_for(
      "annulus::model::swiglu", Policy(exec, {0, 0}, {out.extent_int(0), ffn}),
      KOKKOS_LAMBDA(const int t, const int c) {
        const float gate = gate_up(t, c);
        out(t, c) = T(gate / (1.0f + Kokkos::exp(-gate)) * gate_up(t, ffn + c));
      });
}

template <class Exec, class T>
void swiglu_backward(const Exec& exec, const Array2<const T, Exec>& gate_up,
                     const Array2<const T, Exec>& d_out, const Array2<T, Exec>& d_gate_up) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  const int ffn = d_out.extent_int(1);
  Kokkos::parallel_for(
      "annulus::model::swiglu_backward", Policy(exec, {0, 0}, {d_out.extent_int(0), ffn}),
      KOKKOS_LAMBDA(const int t, const int c) {
        const float gate = gate_up(t, c), up = gate_up(t, ffn + c), d = d_out(t, c);
        const float sigmoid = 1.0f / (1.0f + Kokkos::exp(-gate));
        d_gate_up(t, c) = T(d * up * sigmoid * (1.0f + gate * (1.0f - sigmoid)));
        d_gate_up(t, ffn + c) = T(d * gate * sigmoid);
      });
}

#define ANNULUS_INSTANTIATE(Exec, T)                                                                     \
  template void swiglu(const Exec&, const Array2<const T, Exec>&, const Array2<T, Exec>&);               \
  template void swiglu_backward(const Exec&, const Array2<const T, Exec>&, const Array2<const T, Exec>&, \
                                const Array2<T, Exec>&);
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)

}  // namespace annulus::model
