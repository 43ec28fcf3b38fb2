#include "training/optimizer/non_finite.hpp"

#include <cstring>

#include <annulus/base/division.hpp>

#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/pack.hpp"

namespace annulus::optimizer {

namespace {

// Enough work for a team to hide its start.
constexpr std::int64_t looked_at_together = 16384;

KOKKOS_FORCEINLINE_FUNCTION std::uint32_t is_not_finite(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7f800000u) == 0x7f800000u ? 1 : 0;  // no exponent but that of infinities and NaNs
}

// Raises last(0) to the last element that is not finite, where there is one.
template <int width, class Exec>
void find_last(const Exec& exec, std::int64_t first, const Array1<const float, Exec>& values,
               const Array1<std::int64_t, Exec>& last) {
  const auto size = static_cast<std::int64_t>(values.extent(0));
  if (size == 0) return;
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  constexpr bool on_host = annulus::detail::host_memory<Exec>;
  const auto teams = static_cast<int>(ceil_divide(size, looked_at_together));
  Kokkos::parallel_for(
      "annulus::optimizer::non_finite", Kokkos::TeamPolicy<Exec>(exec, teams, on_host ? 1 : 256),
      KOKKOS_LAMBDA(const Member& team) {
        const std::int64_t begin = team.league_rank() * looked_at_together;
        const std::int64_t end = Kokkos::min(begin + looked_at_together, size);
        // Known to the compiler where it is one thread, so that the loop becomes vector code.
        const int rank = on_host ? 0 : team.team_rank(), step = on_host ? 1 : team.team_size();
        const std::int64_t packs_end = end - (end - begin) % width;
        std::uint32_t any = 0;
        for (std::int64_t i = begin + rank * width; i < packs_end; i += step * width) {
          const Pack<width> pack = load<width>(&values(i));
          for (int e = 0; e < width; ++e) any |= is_not_finite(pack[e]);
        }
        for (std::int64_t i = packs_end + rank; i < end; i += step) any |= is_not_finite(values(i));
        if (any == 0) return;
        std::int64_t found = begin;  // among what this thread has looked at
        for (std::int64_t i = begin + rank * width; i < packs_end; i += step * width)
          for (int e = 0; e < width; ++e)
            if (is_not_finite(values(i + e)) != 0) found = i + e;
        for (std::int64_t i = packs_end + rank; i < end; i += step)
          if (is_not_finite(values(i)) != 0) found = i;
        Kokkos::atomic_max(&last(0), first + found);
      });
}

}  // namespace

template <class Exec>
NonFinite<Exec>::NonFinite(const Exec& exec)
    : last_(Owned<Array1<std::int64_t, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                             "annulus::optimizer::non_finite", 1)) {
  reset(exec);
}

template <class Exec>
void NonFinite<Exec>::reset(const Exec& exec) {
  Kokkos::deep_copy(exec, *last_, std::int64_t{-1});
}

template <class Exec>
void NonFinite<Exec>::look(const Exec& exec, std::int64_t first, const Array1<const float, Exec>& values) {
  const Region region("annulus::optimizer::non_finite");
  // On the host the compiler makes vectors of single elements.
  const bool packs =
      !annulus::detail::host_memory<Exec> && in_packs<Exec, float>(pack_width<Exec, float>, values);
  with_pack_width<Exec, float>(packs,
                               [&](auto width) { find_last<width(), Exec>(exec, first, values, *last_); });
}

template <class Exec>
std::int64_t NonFinite<Exec>::last(const Exec& exec) const {
  std::int64_t last = -1;
  Kokkos::deep_copy(exec, last, Kokkos::subview(*last_, 0));
  exec.fence("annulus::optimizer::non_finite: the host reads the element");
  return last;
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_CLASS, NonFinite)

}  // namespace annulus::optimizer
