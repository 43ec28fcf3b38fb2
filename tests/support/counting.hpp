#pragma once

#include <cstdint>
#include <vector>

#include "support/exec.hpp"

/// Work on arrays of TestExec that shows whether it waits for what comes before.
namespace annulus::test {

/// values(i) = first + i, enqueued.
inline void fill(const TestExec& exec, const Array1<std::int64_t, TestExec>& values, std::int64_t first) {
  Kokkos::parallel_for(
      "annulus::test::fill",
      Kokkos::RangePolicy<TestExec>(exec, 0, static_cast<std::int64_t>(values.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i) { values(i) = first + i; });
}
/// sum(i) += part(i), enqueued.
inline void add(const TestExec& exec, const Array1<std::int64_t, TestExec>& sum,
                const Array1<std::int64_t, TestExec>& part) {
  Kokkos::parallel_for(
      "annulus::test::add", Kokkos::RangePolicy<TestExec>(exec, 0, static_cast<std::int64_t>(sum.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i) { sum(i) += part(i); });
}

/// The values when the work before is done.
inline std::vector<std::int64_t> on_the_host(const TestExec& exec,
                                             const Array1<std::int64_t, TestExec>& values) {
  exec.fence("annulus::test: the host looks");
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), values);
  return {host.data(), host.data() + host.size()};
}

}  // namespace annulus::test
