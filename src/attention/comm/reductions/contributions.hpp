#pragma once

#include <cstddef>

#include <annulus/attention/comm/communicator.hpp>

#include "attention/comm/reductions/reduce.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::comm {

/// Memory for what ranks contribute to one reduction under way, of the queue's instance and in its order.
class ContributionMemory {
 public:
  /// Throws Error when the memory does not suffice.
  ContributionMemory(const Queue& queue, std::size_t bytes);
  std::byte* data() const { return data_; }

 private:
  template <class Space>
  using Bytes = Owned<Kokkos::View<std::byte*, Space>>;

  Bytes<Kokkos::HostSpace> host_;
  Bytes<DeviceExec::memory_space> device_;
  std::byte* data_;
};

/// Combines the contributions (of reduction.count elements) into `out` when the messages of `request`, which
/// bring them into `memory`, have completed.
Request combine_after(Request request, ContributionMemory memory, const Queue& queue,
                      const Reduction& reduction, const Contributions& contributions, void* out);

}  // namespace annulus::comm
