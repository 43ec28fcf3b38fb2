#pragma once

#include <cstdint>

#include <annulus/base/kokkos/memory_use.hpp>

#include "support/tool_notes.hpp"

namespace annulus::test {

/// Bytes of a category that Owned holds there.
inline std::int64_t in_use(MemoryKind kind, MemoryCategory category) {
  return memory_use(kind).current[static_cast<std::size_t>(category)];
}

/// What this process allocates while the object lives: Views, Kokkos' own memory and blocks of the device's
/// pool. Labels read "label: bytes".
class Allocations : public ToolNotes<Allocations> {
 public:
  Allocations() {
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos_Profiling_SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
          // Kokkos asks for no bytes of scratch when it launches teams on a device.
          if (bytes > 0) note(std::string(label) + ": " + std::to_string(bytes));
        });
  }
  ~Allocations() { Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr); }
};

}  // namespace annulus::test
