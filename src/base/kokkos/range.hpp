#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

namespace annulus {

/// Elements [begin, end) of an array, counted in 64 bits: Kokkos by itself counts in 32 on NVIDIA GPUs, and a
/// model has more parameters than that.
template <class Exec, class... Properties>
using ElementRange = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>, Properties...>;

}  // namespace annulus
