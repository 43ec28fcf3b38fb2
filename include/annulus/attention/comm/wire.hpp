#pragma once

#include <cstddef>
#include <functional>

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

  /// Both sides have posted the message. The wire calls `left`, which completes the send, and then `arrived`,
  /// which completes the receive, once each, from a thread of its own: never inside `carry`, which is called
  /// under a lock and returns at once.
  virtual void carry(const Message& message, std::function<void()> left, std::function<void()> arrived) = 0;
};

}  // namespace annulus::comm
