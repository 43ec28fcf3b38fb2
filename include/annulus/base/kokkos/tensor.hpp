#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <type_traits>

namespace annulus {

/// Where CPU runs happen: OpenMP when Kokkos has it.
using HostExec = Kokkos::DefaultHostExecutionSpace;

/// The device's execution space; the host's in a build without a device.
using DeviceExec = Kokkos::DefaultExecutionSpace;
inline constexpr bool has_device = !std::is_same_v<DeviceExec, HostExec>;

/// Dense arrays, last index contiguous. `Space` is an execution or memory space.
template <class T, class Space>
using Array1 = Kokkos::View<T*, Kokkos::LayoutRight,
                            Kokkos::Device<typename Space::execution_space, typename Space::memory_space>>;
template <class T, class Space>
using Array2 = Kokkos::View<T**, Kokkos::LayoutRight,
                            Kokkos::Device<typename Space::execution_space, typename Space::memory_space>>;
template <class T, class Space>
using Array3 = Kokkos::View<T***, Kokkos::LayoutRight,
                            Kokkos::Device<typename Space::execution_space, typename Space::memory_space>>;
template <class T, class Space>
using Array4 = Kokkos::View<T****, Kokkos::LayoutRight,
                            Kokkos::Device<typename Space::execution_space, typename Space::memory_space>>;

/// What kernels of attention take: (batch, heads, tokens, head_dim) with any strides but 1 in the last index,
/// so that ranges of heads and rows of a larger array, and (tokens, heads, head_dim) arrays, need no copy.
template <class T, class Space>
using Strided4 = Kokkos::View<T****, Kokkos::LayoutStride,
                              Kokkos::Device<typename Space::execution_space, typename Space::memory_space>>;
/// (batch, heads, tokens)
template <class T, class Space>
using Strided3 = Kokkos::View<T***, Kokkos::LayoutStride,
                              Kokkos::Device<typename Space::execution_space, typename Space::memory_space>>;

}  // namespace annulus
