#include <annulus/model/ops.hpp>

namespace annulus::model {

template <class Exec>
void swiglu(const Exec& exec, const Array2<const float, Exec>& gate_up, const Array2<float, Exec>& out) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  const int ffn = out.extent_int(1);
  Kokkos::parallel_for(
      "annulus::model::swiglu", Policy(exec, {0, 0}, {out.extent_int(0), ffn}),
      KOKKOS_LAMBDA(const int t, const int c) {
        const float gate = gate_up(t, c);
        out(t, c) = gate / (1.0f + Kokkos::exp(-gate)) * gate_up(t, ffn + c);
      });
}

template <class Exec>
void swiglu_backward(const Exec& exec, const Array2<const float, Exec>& gate_up,
                     const Array2<const float, Exec>& d_out, const Array2<float, Exec>& d_gate_up) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  const int ffn = d_out.extent_int(1);
  Kokkos::parallel_for(
      "annulus::model::swiglu_backward", Policy(exec, {0, 0}, {d_out.extent_int(0), ffn}),
      KOKKOS_LAMBDA(const int t, const int c) {
        const float gate = gate_up(t, c), up = gate_up(t, ffn + c), d = d_out(t, c);
        const float sigmoid = 1.0f / (1.0f + Kokkos::exp(-gate));
        d_gate_up(t, c) = d * up * sigmoid * (1.0f + gate * (1.0f - sigmoid));
        d_gate_up(t, ffn + c) = d * gate * sigmoid;
      });
}

template void swiglu(const HostExec&, const Array2<const float, HostExec>&, const Array2<float, HostExec>&);
template void swiglu_backward(const HostExec&, const Array2<const float, HostExec>&,
                              const Array2<const float, HostExec>&, const Array2<float, HostExec>&);

}  // namespace annulus::model
