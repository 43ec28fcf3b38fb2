#pragma once

#include <Kokkos_Core.hpp>
#include <string>

namespace annulus {

/// A Kokkos Tools region for the life of the object: profilers show the phases of a step by these names.
class Region {
 public:
  explicit Region(const std::string& name) { Kokkos::Profiling::pushRegion(name); }
  ~Region() { Kokkos::Profiling::popRegion(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
};

}  // namespace annulus
