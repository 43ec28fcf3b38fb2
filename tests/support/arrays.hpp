#pragma once

#include <vector>

#include "support/exec.hpp"

namespace annulus::test {

/// The elements of a View of one dimension, as float.
template <class View>
std::vector<float> floats_of(const View& view) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  std::vector<float> values(host.extent(0));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(host(i));
  return values;
}

/// An array of TestExec with these elements.
template <class T>
Array1<T, TestExec> uploaded(const std::vector<T>& values) {
  const Array1<T, TestExec> array("values", values.size());
  Kokkos::deep_copy(array, Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(values.data(),
                                                                                              values.size()));
  return array;
}

}  // namespace annulus::test
