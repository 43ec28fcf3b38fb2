#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>

#include <annulus/comm/queue.hpp>
#include <annulus/core/memory.hpp>

#include "comm/event.hpp"

namespace annulus::comm {

/// Memory of collectives for what comes from others, of the host and of the device. It grows when more is
/// asked for. Work of several queues may use it: one waits for the other.
class Workspace {
 public:
  /// For the life of the object work of `queue` may use the memory; collectives begin and end with it.
  class Use {
   public:
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
  Bytes<Kokkos::HostSpace> host_;
  Bytes<Kokkos::DefaultExecutionSpace::memory_space> device_;
  Event used_;  ///< behind the work that used device_ last
};

}  // namespace annulus::comm
