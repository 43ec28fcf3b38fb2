#pragma once

#include <deque>
#include <mutex>
#include <optional>

#include <annulus/attention/comm/communicator.hpp>

#include "attention/comm/staged/staged.hpp"
#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/memory/pinned.hpp"

namespace annulus::comm {

/// What communicators that stem from one another share to move memory of devices through the host: pinned
/// buffers, two queues for copies, which wait for kernels only where they depend on them, and the outbox.
/// Chunks of messages leave it in the order in which they were posted, each as soon as its copy to the host
/// is done: whoever waits, for whatever, lets those go.
class Staging {
 public:
  struct Departure {
    EventPool::Taken on_host;  ///< the chunk is
    Communicator* inner = nullptr;
    Send send;
    int channel = 0;
    Request* request = nullptr;  ///< where the inner request goes
    const void* owner = nullptr;
  };

  /// Of collectives, and of the exchanges that reserve_staging is about: these find what was reserved for
  /// them.
  PinnedPool pool{MemoryCategory::communication, "annulus::comm::staging"},
      exchanges{MemoryCategory::communication, "annulus::comm::staging"};
  EventPool events;

  void reserve(const ExchangeLoad& load);

  /// Queues of copies to and from the host, on the device of `queue`.
  const Queue& outward(const Queue& queue);
  const Queue& inward(const Queue& queue);

  void depart(const Departure& departure);
  /// Lets go what is on the host; true when nothing is left.
  bool pump();
  /// Waits until everything is on the host, and lets it go: before calls that wait for others inside.
  void flush();
  /// The owner is given up.
  void forget(const void* owner);

 private:
  void send_first();

  std::mutex mutex_;
  std::optional<Queue> outward_, inward_;
  std::deque<Departure> outbox_;
};

}  // namespace annulus::comm
