#include <annulus/model/ops.hpp>

#include "core/instantiate.hpp"

namespace annulus::model {

template <class Exec, class T>
void embed(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
           const Array2<const T, Exec>& table, const Array2<T, Exec>& out) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  Kokkos::parallel_for(
      "annulus::model::embed", Policy(exec, {0, 0}, {out.extent_int(0), out.extent_int(1)}),
      KOKKOS_LAMBDA(const int t, const int c) { out(t, c) = table(tokens(t), c); });
}

template <class Exec, class T>
void embed_backward(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                    const Array1<const std::int32_t, Exec>& order, const Array2<const T, Exec>& d_out,
                    const Array2<float, Exec>& d_table) {
  using Team = Kokkos::TeamPolicy<Exec>;
  const int rows = d_out.extent_int(0), hidden = d_out.extent_int(1);
  if (rows == 0) return;
  // A team stands at every row of the sorted order; the one at the first row of a token does the token's
  // whole run.
  Kokkos::parallel_for(
      "annulus::model::embed_backward", Team(exec, rows, Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Team::member_type& team) {
        const int begin = team.league_rank();
        const std::int32_t token = tokens(order(begin));
        if (begin > 0 && tokens(order(begin - 1)) == token) return;
        int end = begin + 1;
        while (end < rows && tokens(order(end)) == token) ++end;
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, hidden), [&](const int c) {
          float sum = 0.0f;
          for (int i = begin; i < end; ++i) sum += d_out(order(i), c);
          d_table(token, c) += sum;
        });
      });
}

#define ANNULUS_INSTANTIATE(Exec, T)                                                                      \
  template void embed(const Exec&, const Array1<const std::int32_t, Exec>&, const Array2<const T, Exec>&, \
                      const Array2<T, Exec>&);                                                            \
  template void embed_backward(const Exec&, const Array1<const std::int32_t, Exec>&,                      \
                               const Array1<const std::int32_t, Exec>&, const Array2<const T, Exec>&,     \
                               const Array2<float, Exec>&);
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)

}  // namespace annulus::model
