#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <type_traits>
#include <utility>

namespace annulus::test {

/// The execution space that a test program is about: the host's, and the device's in the programs that
/// annulus_add_test adds for DEVICE.
#ifdef ANNULUS_TEST_ON_DEVICE
using TestExec = Kokkos::DefaultExecutionSpace;
#else
using TestExec = HostExec;
#endif

inline constexpr bool on_host = std::is_same_v<TestExec, HostExec>;

/// An instance of its own (a stream on a device), on the host with one thread.
template <class Exec>
Exec new_instance() {
  if constexpr (std::is_constructible_v<Exec, Kokkos::NewInstance>) {
    return Exec(Kokkos::NewInstance());
  } else if constexpr (std::is_constructible_v<Exec, int>) {
    return Exec(1);
  } else {
    return std::move(Kokkos::Experimental::partition_space(Exec(), 1)[0]);
  }
}

/// What a rank that is a thread of a test computes on: ranks share the host's threads, and have a stream each
/// on a device.
inline TestExec rank_instance() {
  if constexpr (on_host) {
    return TestExec();
  } else {
    return new_instance<TestExec>();
  }
}

}  // namespace annulus::test
