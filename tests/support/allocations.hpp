#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

/// Counts allocations, as Kokkos' tools see them: of Views, of Kokkos itself and of the device's pool.
namespace annulus::test {

/// What this process allocates while the object lives, any thread. One at a time.
class Allocations {
 public:
  Allocations() {
    clear();
    Kokkos::Tools::Experimental::set_allocate_data_callback([](Kokkos_Profiling_SpaceHandle,
                                                               const char* label, const void*,
                                                               std::uint64_t bytes) { add(label, bytes); });
  }
  ~Allocations() { Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr); }
  Allocations(const Allocations&) = delete;
  Allocations& operator=(const Allocations&) = delete;

  /// "label: bytes" of each so far, in order.
  std::vector<std::string> labels() const {
    const std::lock_guard lock(mutex());
    return seen();
  }
  void clear() {
    const std::lock_guard lock(mutex());
    seen().clear();
  }

 private:
  static void add(const char* label, std::uint64_t bytes) {
    if (bytes == 0) return;  // Kokkos asks for no bytes of scratch when it launches teams on a device
    const std::lock_guard lock(mutex());
    seen().push_back(std::string(label) + ": " + std::to_string(bytes));
  }
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::vector<std::string>& seen() {
    static std::vector<std::string> instance;
    return instance;
  }
};

}  // namespace annulus::test
