#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <string>

#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus {

/// Scratch memory that is kept from one use to the next, one block of the host and one of the device. A block
/// grows when more is asked for and never shrinks. Queues may share it: the work of the next waits for that
/// of the one before. One host thread at a time.
class Workspace {
 public:
  /// What the memory counts as, and its label ("annulus::<module>::<what>").
  Workspace(MemoryCategory category, std::string label);

  /// While the object lives, work of `queue` may use `bytes` of the memory; only one such object lives at a
  /// time. Where the queue is of the host its work is done when the object ends.
  class Use {
   public:
    /// Throws Error when the memory does not suffice.
    Use(Workspace& workspace, const Queue& queue, std::size_t bytes);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    std::byte* data() const { return data_; }

   private:
    Workspace& workspace_;
    Queue queue_;
    std::byte* data_;
  };

 private:
  template <class Space>
  using Bytes = Owned<Kokkos::View<std::byte*, Space>>;

  /// The block, at least `bytes` long; `used` is behind the work that used it last.
  template <class Space, class Exec>
  std::byte* grown(Bytes<Space>& block, const Event& used, const Exec& exec, std::size_t bytes) const;

  MemoryCategory category_;
  std::string label_;
  Bytes<Kokkos::HostSpace> host_;
  Bytes<DeviceExec::memory_space> device_;
  Event used_;  ///< behind the work that used device_ last
};

}  // namespace annulus
