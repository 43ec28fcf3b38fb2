#include <annulus/model/ops.hpp>

#include "core/instantiate.hpp"

namespace annulus::model {

namespace {
// Rows whose gain gradients are summed by one team. Fixed, so that the sums do not depend on the number of
// threads.
constexpr std::int64_t rows_per_partial = 64;
}  // namespace

std::int64_t norm_partial_rows(std::int64_t tokens) {
  return (tokens + rows_per_partial - 1) / rows_per_partial;
}

template <class Exec, class T>
void rms_norm(const Exec& exec, const Array2<const T, Exec>& x, const Array1<const T, Exec>& gain,
              float epsilon, const Array2<T, Exec>& out, const Array1<float, Exec>& inverse_rms) {
  using Team = Kokkos::TeamPolicy<Exec>;
  const int hidden = x.extent_int(1);
  Kokkos::parallel_for(
      "annulus::model::rms_norm", Team(exec, x.extent_int(0), Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Team::member_type& team) {
        const int t = team.league_rank();
        float squares = 0.0f;
        Kokkos::parallel_reduce(
            Kokkos::TeamVectorRange(team, hidden), [&](const int c, float& sum) { sum += x(t, c) * x(t, c); },
            squares);
        const float r = 1.0f / Kokkos::sqrt(squares / static_cast<float>(hidden) + epsilon);
        Kokkos::single(Kokkos::PerTeam(team), [&] { inverse_rms(t) = r; });
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, hidden),
                             [&](const int c) { out(t, c) = T(x(t, c) * r * gain(c)); });
      });
}

template <class Exec, class T>
void rms_norm_again(const Exec& exec, const Array2<const T, Exec>& x, const Array1<const T, Exec>& gain,
                    const Array1<const float, Exec>& inverse_rms, const Array2<T, Exec>& out) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  Kokkos::parallel_for(
      "annulus::model::rms_norm_again", Policy(exec, {0, 0}, {x.extent_int(0), x.extent_int(1)}),
      KOKKOS_LAMBDA(const int t, const int c) { out(t, c) = T(x(t, c) * inverse_rms(t) * gain(c)); });
}

template <class Exec, class T>
void rms_norm_backward(const Exec& exec, const Array2<const T, Exec>& x, const Array1<const T, Exec>& gain,
                       const Array1<const float, Exec>& inverse_rms, const Array2<const T, Exec>& d_out,
                       const Array2<T, Exec>& d_x, const Array1<float, Exec>& d_gain,
                       const Array2<float, Exec>& partial) {
  using Team = Kokkos::TeamPolicy<Exec>;
  const int rows = x.extent_int(0), hidden = x.extent_int(1);
  const int blocks = static_cast<int>(norm_partial_rows(rows));
  // With x̂ = x·r and g = d_out∘gain: d_x = r·(g − x̂·mean(g∘x̂)), d_gain = Σ_t d_out∘x̂.
  Kokkos::parallel_for(
      "annulus::model::rms_norm_backward", Team(exec, blocks, Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Team::member_type& team) {
        const int block = team.league_rank();
        const int begin = block * static_cast<int>(rows_per_partial);
        const int end = Kokkos::min(rows, begin + static_cast<int>(rows_per_partial));
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, hidden), [&](const int c) {
          float sum = 0.0f;
          for (int t = begin; t < end; ++t) sum += d_out(t, c) * x(t, c) * inverse_rms(t);
          partial(block, c) = sum;
        });
        for (int t = begin; t < end; ++t) {
          const float r = inverse_rms(t);
          float dot = 0.0f;
          Kokkos::parallel_reduce(
              Kokkos::TeamVectorRange(team, hidden),
              [&](const int c, float& sum) { sum += d_out(t, c) * gain(c) * x(t, c) * r; }, dot);
          const float mean = dot / static_cast<float>(hidden);
          Kokkos::parallel_for(Kokkos::TeamVectorRange(team, hidden), [&](const int c) {
            d_x(t, c) = T(d_x(t, c) + r * (d_out(t, c) * gain(c) - x(t, c) * r * mean));
          });
        }
      });
  Kokkos::parallel_for(
      "annulus::model::rms_norm_backward_gain", Kokkos::RangePolicy<Exec>(exec, 0, hidden),
      KOKKOS_LAMBDA(const int c) {
        float sum = 0.0f;
        for (int block = 0; block < blocks; ++block) sum += partial(block, c);
        d_gain(c) += sum;
      });
}

#define ANNULUS_INSTANTIATE(Exec, T)                                                                       \
  template void rms_norm(const Exec&, const Array2<const T, Exec>&, const Array1<const T, Exec>&, float,   \
                         const Array2<T, Exec>&, const Array1<float, Exec>&);                              \
  template void rms_norm_again(const Exec&, const Array2<const T, Exec>&, const Array1<const T, Exec>&,    \
                               const Array1<const float, Exec>&, const Array2<T, Exec>&);                  \
  template void rms_norm_backward(const Exec&, const Array2<const T, Exec>&, const Array1<const T, Exec>&, \
                                  const Array1<const float, Exec>&, const Array2<const T, Exec>&,          \
                                  const Array2<T, Exec>&, const Array1<float, Exec>&,                      \
                                  const Array2<float, Exec>&);
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)

}  // namespace annulus::model
