#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include <annulus/attention/comm/communicator.hpp>

namespace annulus::comm {

/// Decides when messages between ranks that are threads arrive (LoopbackOptions::wire): what emulations of
/// slower links implement.
class Wire {
 public:
  /// Ranks are those of the world. Messages with equal `context` (the communicator, of those that split has
  /// made), ranks and channel (below 0: of collectives) are carried in their order.
  struct Message {
    int from = 0, to = 0;
    int context = 0, channel = 0;
    std::size_t bytes = 0;
  };

  virtual ~Wire() = default;

  /// Carries a message that both sides have posted. The wire calls `left`, which completes the send, and then
  /// `arrived`, which completes the receive, once each, from a thread of its own: never inside `carry`, which
  /// is called under a lock and returns at once.
  virtual void carry(const Message& message, std::function<void()> left, std::function<void()> arrived) = 0;
};

struct LoopbackOptions {
  /// How long a rank may wait for one exchange before it fails with an error that names what it waits for.
  std::chrono::milliseconds stall_timeout = std::chrono::seconds(120);

  /// Carries every message, those of collectives too; outlives the run. Null: messages arrive when both sides
  /// have posted them.
  Wire* wire = nullptr;
};

/// Runs `body` once for each rank of `topology`, every rank a thread of this process, connected by memory.
/// For tests and for debugging in one debugger. When a rank throws, the others are woken out of their waits
/// with the error "rank R failed: …", all threads are joined, and the first exception is thrown again. A
/// deadlock (every rank waits, or has returned) is an error at once; it names what each rank waits for.
/// (Where a thread other than the rank's own has communicated it may yet bring what is missing: then only the
/// wait timeout ends the wait.) Without a wire sends complete when they are received.
void run_loopback(const Topology& topology, const std::function<void(Communicator&)>& body,
                  const LoopbackOptions& options = {});

}  // namespace annulus::comm
