#pragma once

#include <Kokkos_Core.hpp>
#include <functional>
#include <string>

namespace annulus::comm {

/// The execution space instance on whose work a communication depends, with its type erased so that
/// communicators can be virtual. A back-end calls fence() before it hands memory to the network.
class Queue {
 public:
  /// Any Kokkos execution space instance; keeps a copy of it.
  template <class Exec>
  requires Kokkos::is_execution_space_v<Exec> Queue(
      const Exec& exec)  // NOLINT(google-explicit-constructor): an instance is the first argument of all work
      : fence_([exec](const std::string& why) { exec.fence(why); }),
        host_(Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible) {}

  /// Waits until the work enqueued so far is done; `why` labels the fence.
  void fence(const std::string& why) const { fence_(why); }

  /// The instance works on memory that the host reads directly.
  bool is_host() const { return host_; }

 private:
  std::function<void(const std::string&)> fence_;
  bool host_;
};

}  // namespace annulus::comm
