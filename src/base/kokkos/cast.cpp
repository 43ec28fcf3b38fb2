#include "base/kokkos/cast.hpp"

#include <cstdint>

#include <annulus/base/error.hpp>

#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/pack.hpp"
#include "base/kokkos/range.hpp"

namespace annulus {

namespace {

template <int width, class Exec, class To, class From>
void cast_packs(const Exec& exec, const Array1<const From, Exec>& from, const Array1<To, Exec>& to) {
  Kokkos::parallel_for(
      "annulus::cast", ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(from.extent(0)) / width),
      KOKKOS_LAMBDA(const std::int64_t i) { store(&to(i * width), load<width>(&from(i * width))); });
}

}  // namespace

template <class Exec, class To, class From>
void cast(const Exec& exec, const Array1<const From, Exec>& from, const Array1<To, Exec>& to) {
  require(from.extent(0) == to.extent(0), "cast: {} elements of '{}' do not fit {} elements of '{}'",
          from.extent(0), from.label(), to.extent(0), to.label());
  with_pack_width<Exec, bfloat16>(
      in_packs<Exec, bfloat16>(static_cast<std::int64_t>(from.extent(0)), from, to),
      [&](auto width) { cast_packs<decltype(width)::value>(exec, from, to); });
}

#define ANNULUS_INSTANTIATE(Exec, To, From) \
  template void cast(const Exec&, const Array1<const From, Exec>&, const Array1<To, Exec>&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE, float, bfloat16)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE, bfloat16, float)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus
