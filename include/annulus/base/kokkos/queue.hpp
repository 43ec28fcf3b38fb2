#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace annulus {

/// Whether instances of an execution space are streams of a GPU: those of Kokkos::Cuda and Kokkos::HIP.
template <class Exec>
inline constexpr bool has_stream = requires(const Exec& exec) {
  exec.cuda_stream();
}
|| requires(const Exec& exec) {
  exec.hip_stream();
};

/// The handle of an instance's stream, a cudaStream_t or hipStream_t; null where there is none.
template <class Exec>
void* stream_of(const Exec& exec) {
  if constexpr (requires { exec.cuda_stream(); }) {
    return exec.cuda_stream();
  } else if constexpr (requires { exec.hip_stream(); }) {
    return exec.hip_stream();
  } else {
    return nullptr;
  }
}

/// A Kokkos execution space instance (on a GPU its stream) with its type erased, so that interfaces can be
/// virtual: the work on which a transfer, a copy or an Event depends. Copies are cheap and stand for the same
/// instance. On the host, work is done when the call that enqueues it returns or the queue is fenced.
class Queue {
 public:
  /// Any Kokkos execution space instance; keeps a copy of it.
  template <class Exec>
  requires Kokkos::is_execution_space_v<Exec> Queue(
      const Exec& exec)  // NOLINT(google-explicit-constructor): an instance is the first argument of all work
      : work_(std::make_shared<const InstanceOf<Exec>>(exec)) {}

  /// Waits until the work enqueued so far is done; `why` labels the fence.
  void fence(const std::string& why) const { work_->fence(why); }

  /// The instance works on memory that the host reads directly.
  bool is_host() const { return work_->is_host(); }

  /// The cudaStream_t of an instance of Kokkos::Cuda, the hipStream_t of one of Kokkos::HIP; otherwise null.
  void* stream() const { return work_->stream(); }

  /// The instance, if it is of this type; otherwise null.
  template <class Exec>
  const Exec* instance() const {
    return work_->type() == typeid(Exec) ? static_cast<const Exec*>(work_->instance()) : nullptr;
  }

  /// A queue with a new stream of the same device, whose work does not wait for this one's; on the host this
  /// queue again.
  Queue new_stream() const { return Queue(work_->new_stream()); }

  /// Enqueues a copy from memory of the instance to memory of the host, the reverse, and one within the
  /// memory of the instance. The caller leaves both sides alone until the copy is done. With pinned host
  /// memory (PinnedBuffer) the device copies directly and the call returns at once.
  void copy_to_host(void* host, const void* data, std::size_t bytes) const {
    work_->copy_to_host(host, data, bytes);
  }
  void copy_from_host(void* data, const void* host, std::size_t bytes) const {
    work_->copy_from_host(data, host, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) const { work_->copy(to, from, bytes); }

 private:
  class Instance {
   public:
    virtual ~Instance() = default;
    virtual void fence(const std::string& why) const = 0;
    virtual bool is_host() const = 0;
    virtual void* stream() const = 0;
    virtual const std::type_info& type() const = 0;
    virtual const void* instance() const = 0;
    virtual std::shared_ptr<const Instance> new_stream() const = 0;
    virtual void copy_to_host(void* host, const void* data, std::size_t bytes) const = 0;
    virtual void copy_from_host(void* data, const void* host, std::size_t bytes) const = 0;
    virtual void copy(void* to, const void* from, std::size_t bytes) const = 0;
  };

  template <class Exec>
  class InstanceOf final : public Instance {
   public:
    explicit InstanceOf(const Exec& exec) : exec_(exec) {}
    void fence(const std::string& why) const override { exec_.fence(why); }
    bool is_host() const override { return on_host; }
    void* stream() const override { return stream_of(exec_); }
    const std::type_info& type() const override { return typeid(Exec); }
    const void* instance() const override { return &exec_; }
    std::shared_ptr<const Instance> new_stream() const override {
      if constexpr (on_host) {
        return std::make_shared<const InstanceOf>(exec_);
      } else {
        return std::make_shared<const InstanceOf>(Kokkos::Experimental::partition_space(exec_, 1)[0]);
      }
    }
    void copy_to_host(void* host, const void* data, std::size_t bytes) const override {
      copy_bytes<Kokkos::HostSpace, Space>(host, data, bytes);
    }
    void copy_from_host(void* data, const void* host, std::size_t bytes) const override {
      copy_bytes<Space, Kokkos::HostSpace>(data, host, bytes);
    }
    void copy(void* to, const void* from, std::size_t bytes) const override {
      copy_bytes<Space, Space>(to, from, bytes);
    }

   private:
    using Space = typename Exec::memory_space;
    static constexpr bool on_host = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space>::accessible;

    template <class To, class From>
    void copy_bytes(void* to, const void* from, std::size_t bytes) const {
      Kokkos::deep_copy(
          exec_, Kokkos::View<std::byte*, To, Kokkos::MemoryUnmanaged>(static_cast<std::byte*>(to), bytes),
          Kokkos::View<const std::byte*, From, Kokkos::MemoryUnmanaged>(static_cast<const std::byte*>(from),
                                                                        bytes));
    }

    Exec exec_;
  };

  explicit Queue(std::shared_ptr<const Instance> work) : work_(std::move(work)) {}

  std::shared_ptr<const Instance> work_;
};

}  // namespace annulus
