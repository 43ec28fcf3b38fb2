#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include <annulus/comm/communicator.hpp>
#include <annulus/core/memory.hpp>

#include "comm/event.hpp"

namespace annulus::comm {

using PinnedSpace = Kokkos::SharedHostPinnedSpace;  // the host's where Kokkos knows no device

/// Pinned buffers, kept for the next message: pinning memory takes longer than most messages do. A buffer
/// serves messages of about one size, so that what is allocated depends on the messages alone, not on which
/// of them happened to end first. Sizes are powers of two from 4 KiB on: of each there are as many buffers as
/// were in use at once, so that the memory has a bound where messages have one (StagedState sends long ones
/// in pieces), whatever their sizes.
class PinnedPool {
 public:
  struct Buffer {
    Owned<Kokkos::View<std::byte*, PinnedSpace>> memory;
    EventPool::Taken used;  ///< behind the last copy that reads or writes it; null: none does
    std::byte* data() const { return memory.view().data(); }
  };

  /// A free buffer for messages of about `bytes`: one that no copy uses, else the one given back first,
  /// waited for; a new one where none is free.
  Buffer take(std::size_t bytes);
  void give_back(Buffer buffer);

 private:
  std::mutex mutex_;
  std::list<Buffer> free_;
};

/// What communicators that stem from one another share to move memory of devices through the host: pinned
/// buffers, two queues for copies, which wait for kernels only where they depend on them, and the outbox.
/// Pieces of messages leave it in the order in which they were posted, each as soon as its copy to the host
/// is done: whoever waits, for whatever, lets those go.
class Staging {
 public:
  struct Departure {
    EventPool::Taken on_host;  ///< the piece is
    Communicator* inner = nullptr;
    Send send;
    int channel = 0;
    Request* request = nullptr;  ///< where the inner request goes
    const void* owner = nullptr;
  };

  PinnedPool pool;
  const std::shared_ptr<EventPool> events = std::make_shared<EventPool>();

  /// Queues of copies to and from the host, on the device of `queue`.
  const Queue& outward(const Queue& queue);
  const Queue& inward(const Queue& queue);

  /// An event behind what `queue` holds now.
  EventPool::Taken mark(const Queue& queue) const;

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
