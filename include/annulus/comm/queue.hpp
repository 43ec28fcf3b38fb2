#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
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
        to_host_([exec](void* host, const void* data, std::size_t bytes) {
          Kokkos::deep_copy(
              exec, Bytes<Kokkos::HostSpace>(static_cast<std::byte*>(host), bytes),
              ConstBytes<typename Exec::memory_space>(static_cast<const std::byte*>(data), bytes));
        }),
        from_host_([exec](void* data, const void* host, std::size_t bytes) {
          Kokkos::deep_copy(exec, Bytes<typename Exec::memory_space>(static_cast<std::byte*>(data), bytes),
                            ConstBytes<Kokkos::HostSpace>(static_cast<const std::byte*>(host), bytes));
        }),
        host_(Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible) {
    if constexpr (requires { exec.cuda_stream(); }) stream_ = exec.cuda_stream();
  }

  /// Waits until the work enqueued so far is done; `why` labels the fence.
  void fence(const std::string& why) const { fence_(why); }

  /// The instance works on memory that the host reads directly.
  bool is_host() const { return host_; }

  /// The cudaStream_t of an instance of Kokkos::Cuda; otherwise null.
  void* stream() const { return stream_; }

  /// Enqueues a copy of memory of the instance to memory of the host, and the reverse. Both stay as they are
  /// until the next fence. Host memory that is pinned is copied without a detour.
  void copy_to_host(void* host, const void* data, std::size_t bytes) const { to_host_(host, data, bytes); }
  void copy_from_host(void* data, const void* host, std::size_t bytes) const {
    from_host_(data, host, bytes);
  }

 private:
  template <class Space>
  using Bytes = Kokkos::View<std::byte*, Space, Kokkos::MemoryUnmanaged>;
  template <class Space>
  using ConstBytes = Kokkos::View<const std::byte*, Space, Kokkos::MemoryUnmanaged>;

  std::function<void(const std::string&)> fence_;
  std::function<void(void*, const void*, std::size_t)> to_host_, from_host_;
  bool host_;
  void* stream_ = nullptr;
};

}  // namespace annulus::comm
