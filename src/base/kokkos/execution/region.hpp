#pragma once

#include <Kokkos_Core.hpp>
#include <string>
#include <string_view>

namespace annulus {

namespace detail {
// For RegionTimes of this thread.
void region_begins(std::string_view name);
void region_ends();
}  // namespace detail

/// A Kokkos Tools region for the life of the object: profilers show the phases of a step by these names, and
/// RegionTimes adds up their times.
class Region {
 public:
  explicit Region(const std::string& name) {
    Kokkos::Profiling::pushRegion(name);
    detail::region_begins(name);
  }
  ~Region() {
    detail::region_ends();
    Kokkos::Profiling::popRegion();
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
};

}  // namespace annulus
