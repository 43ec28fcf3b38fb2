#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "attention/comm/watchdog.hpp"

namespace annulus::comm {

/// Message matching between ranks that are threads of one process. A message is copied by the rank that posts
/// its second side, under the lock of the world: nothing moves behind anybody's back, so a rank that gives an
/// exchange up need only take its messages out of the queues. With a wire they complete later than that.
class LoopbackWorld : public std::enable_shared_from_this<LoopbackWorld> {
 public:
  /// One side of a message. Ranks are those of the world.
  struct LoopbackMessage {
    void* data = nullptr;  // of a send: only read
    std::size_t bytes = 0;
    int source = 0, target = 0, context = 0, channel = 0;
    bool is_send = false, done = false;
    std::string error;
    std::int64_t exchange = none;  ///< on the wire under this number
    static constexpr std::int64_t none = -1;
    std::size_t index = 0;  ///< among the sends or the receives of its operation
    int peer = 0;           ///< number of the other side's rank in the communicator

    int owner() const { return is_send ? source : target; }
    std::string describe() const;
  };
  /// An exchange of one rank. Its messages do not move in memory once posted.
  struct Operation {
    int rank = 0;
    std::vector<LoopbackMessage> messages;
    bool complete() const;
  };

  /// `wire` may be null.
  LoopbackWorld(int ranks, std::chrono::milliseconds stall_timeout, Wire* wire);

  int ranks() const { return static_cast<int>(ranks_.size()); }
  Watchdog* watchdog(int rank) const { return &ranks_[static_cast<std::size_t>(rank)]->watchdog; }

  /// The calling thread is `rank` from now on.
  void enter(int rank);
  /// `rank` has returned and will post no more.
  void leave(int rank);
  /// `rank` has failed: wakes all others with an error. The first failure counts.
  void fail(int rank, const std::string& message, std::exception_ptr exception);
  /// The exception of the first failure; null when there was none.
  std::exception_ptr failure() const;

  void post(Operation& operation);
  /// Blocks until all messages are done. Throws Error when one failed, a rank failed, all ranks wait or time
  /// is up.
  void wait(const Operation& operation);
  bool test(const Operation& operation);
  /// Takes what is not done out of the queues.
  void withdraw(Operation& operation) noexcept;

  /// What a wait swallowed of `rank`; the rank's next post throws it.
  void remember(int rank, const std::string& error) noexcept;

  /// The number by which messages of a new group are told apart: the same for all ranks that give the same
  /// arguments.
  int context_of(int parent, int split, int color);

 private:
  using Key = std::tuple<int, int, int, int>;  // context, source, target, channel
  struct Mailbox {
    std::deque<LoopbackMessage*> sends, receives;
  };
  struct LoopbackRank {
    std::condition_variable changed;
    const Operation* waits_for = nullptr;
    std::int64_t completed = 0;  ///< messages of this rank
    std::int64_t seen = 0;       ///< of those, when it began to wait with nothing left to post; or:
    static constexpr std::int64_t looking = -1;
    bool told = true;  ///< of all completed messages
    bool running = true;
    std::thread::id thread;
    std::string swallowed;
    mutable Watchdog watchdog;
  };

  /// A message on the wire. Null: that side has given it up or is done.
  struct MessageOnWire {
    LoopbackMessage *send = nullptr, *receive = nullptr;
    Key key;
    std::size_t bytes = 0;
    Watchdog::Clock::time_point matched;
  };

  void match(LoopbackMessage& send, LoopbackMessage& receive);
  void complete(LoopbackMessage& message);
  /// Releases the lock, then wakes the ranks whose messages were completed under it.
  void tell_owners(std::unique_lock<std::mutex> lock);
  /// Gives a message whose bytes have been copied to the wire.
  void launch(LoopbackMessage& send, LoopbackMessage& receive);
  /// Tells both ranks how long a message of a caller's channel took.
  void tell_time(const Key& key, std::size_t bytes, Watchdog::Clock::duration time);
  /// The wire is done with one side of a flight.
  void land(std::int64_t exchange, LoopbackMessage* MessageOnWire::*side);
  void check_failure() const;
  void check_result(const Operation& operation) const;
  /// Which messages every rank waits for when none can continue; otherwise empty.
  std::string deadlock() const;
  /// What every rank that says so is doing. Not under the lock: it is told by functions that may take it.
  std::string tell_all() const;
  std::vector<Pending> pending(const Operation& operation) const;
  void record_failure(const std::string& message, std::exception_ptr exception);

  mutable std::mutex mutex_;
  std::chrono::milliseconds stall_timeout_;
  std::vector<std::unique_ptr<LoopbackRank>> ranks_;
  std::map<Key, Mailbox> mailboxes_;
  Wire* wire_;
  std::map<std::int64_t, MessageOnWire> in_flight_;
  /// Messages of one key that a wire has carried one after the other, without a pause.
  struct Burst {
    Watchdog::Clock::time_point begin, end;
    std::size_t bytes = 0;
  };
  std::map<Key, Burst> bursts_;
  std::int64_t launched_ = 0;
  std::map<std::tuple<int, int, int>, int> contexts_;
  bool one_thread_a_rank_ = true;  // otherwise another thread may yet post what all seem to wait for
  std::exception_ptr failure_;
  std::string failure_text_;
};

}  // namespace annulus::comm
