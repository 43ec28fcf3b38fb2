#include <annulus/core/cast.hpp>

#include <cstdint>

#include <annulus/base/error.hpp>

#include "core/instantiate.hpp"

namespace annulus {

template <class Exec, class To, class From>
void cast(const Exec& exec, const Array1<const From, Exec>& from, const Array1<To, Exec>& to) {
  require(from.extent(0) == to.extent(0), "cast: {} elements of '{}' do not fit {} elements of '{}'",
          from.extent(0), from.label(), to.extent(0), to.label());
  Kokkos::parallel_for(
      "annulus::cast", Kokkos::RangePolicy<Exec>(exec, 0, static_cast<std::int64_t>(from.extent(0))),
      KOKKOS_LAMBDA(const std::int64_t i) { to(i) = To(static_cast<float>(from(i))); });
}

#define ANNULUS_INSTANTIATE(Exec, To, From) \
  template void cast(const Exec&, const Array1<const From, Exec>&, const Array1<To, Exec>&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE, float, bfloat16)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE, bfloat16, float)

}  // namespace annulus
