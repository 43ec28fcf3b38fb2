#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/comm/message_times.hpp"

namespace annulus::comm {

/// A message that a rank waits for.
struct Pending {
  bool receive = false;   ///< else a send
  std::size_t index = 0;  ///< among the receives (the sends) of its exchange, in the order listed
  int peer = 0;           ///< rank in the communicator
  int world_peer = 0;     ///< rank of the peer in the whole job
  int channel = 0;        ///< below 0: a collective
  std::size_t bytes = 0;
};

/// What a rank is doing, for the report of a run that has stalled because a rank is lost or stuck. The rank
/// tells it in scopes, `ActivityScope` and `Waiting`, which nest; any thread may ask. A null Watchdog is
/// allowed in both, which then do nothing.
///
/// Transports compare every wait with its timeout. Over MPI a thread of each rank does so (and answers for
/// ranks that compute or are stuck, see MpiEnvironment::set_stall_timeout); the loopback communicator does so
/// in the wait. Transfers for which streams wait and the host does not are a Background, which that thread
/// looks at. Messages that end leave their times here.
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  using Timeout = std::chrono::milliseconds;  ///< of one wait; zero: none
  static double in_seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

  /// A wait that goes on.
  struct Wait {
    double seconds = 0;
    std::vector<Pending> pending;  ///< empty where the transport does not know
    std::string to_string() const;
  };
  /// Says what the rank is doing; with the wait inside it, if there is one. May be called by another thread.
  using Describe = std::function<std::string(const Wait*)>;
  using Messages = std::function<std::vector<Pending>()>;
  /// Makes what will be said of a transfer that is posted now, should it be late: it may outlive the scope.
  using Note = std::function<Describe()>;

  /// Transfers that go on without the host. Called by the thread that watches the waits, whatever the rank's
  /// own threads do.
  class Background {
   public:
    virtual ~Background() = default;
    /// Polls what is under way. Returns what has failed; nothing as a rule.
    virtual std::string poll(Clock::time_point now) = 0;
    /// Seconds that the longest wait has lasted; 0 without one.
    virtual double longest_wait(Clock::time_point now) const = 0;
    /// The timeout of a wait that has lasted longer.
    virtual std::optional<Timeout> exceeded(Clock::time_point now) const = 0;
    /// What the longest wait is for; nothing without one.
    virtual std::string describe(Clock::time_point now) const = 0;
    virtual void exclude_suspended_time(Clock::time_point from, Clock::time_point to) = 0;
    /// Ends what is under way, wherever it waits: the job ends.
    virtual void abort() noexcept = 0;
  };

  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   protected:
    Scope(Watchdog* watchdog, bool waits, Describe describe, Messages messages,
          std::optional<Timeout> timeout, Note note);

   private:
    friend class Watchdog;
    Watchdog* watchdog_;
    bool waits_;
    Describe describe_;
    Messages messages_;
    std::optional<Timeout> timeout_;
    Note note_;
    Clock::time_point since_{};
  };

  /// The rank is at `what`. `timeout` is that of waits inside, in the place of the default one. Without
  /// `note` a copy of `what` is said of transfers that outlive the scope.
  class ActivityScope : public Scope {
   public:
    ActivityScope(Watchdog* watchdog, Describe what, std::optional<Timeout> timeout = {}, Note note = {})
        : Scope(watchdog, false, std::move(what), {}, timeout, std::move(note)) {}
    ActivityScope(Watchdog* watchdog, const std::string& what, std::optional<Timeout> timeout = {});
  };

  /// The rank waits, for what `messages` says when it is asked. Of waits inside waits the outermost counts.
  class Waiting : public Scope {
   public:
    explicit Waiting(Watchdog* watchdog, Messages messages = {})
        : Scope(watchdog, true, {}, std::move(messages), {}, {}) {}
  };

  /// `start_thread` is called once, when the first timeout is set.
  explicit Watchdog(std::function<void()> start_thread = {}) : start_thread_(std::move(start_thread)) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Sets the timeout of waits for which no scope sets another one.
  void set_timeout(Timeout timeout);
  /// The timeout of a wait that begins now.
  Timeout timeout() const;

  /// Everything that the rank is doing, from the outermost scope to the innermost one, and what its device
  /// waits for.
  std::string describe() const;
  /// What will be said of a transfer that is posted now.
  Describe note() const;
  /// A scope says what the rank is doing.
  bool knows() const;

  /// Seconds of the longest wait under way; 0 without one.
  double longest_wait() const;
  /// The timeout of a wait that has lasted longer.
  std::optional<Timeout> exceeded() const;
  /// The process stood still: no wait that was under way counts this time.
  void exclude_suspended_time(Clock::time_point from, Clock::time_point to);

  /// `background` belongs to this rank from now on, until it is removed.
  void add(Background* background);
  void remove(Background* background);
  /// Polls them all; returns the first failure.
  std::string poll();
  /// Ends the transfers of them all.
  void abort() noexcept;

  /// What the messages of this rank take, over all its communicators.
  MessageTimes& message_times() { return message_times_; }

 private:
  std::string describe_scopes() const;
  Timeout timeout_before(std::size_t scope) const;
  void start();

  mutable std::mutex mutex_;
  std::vector<Scope*> scopes_;
  mutable std::mutex background_mutex_;  ///< not while scopes or backgrounds are asked under mutex_
  std::vector<Background*> backgrounds_;
  Timeout timeout_{0};
  std::function<void()> start_thread_;
  bool started_ = false;
  MessageTimes message_times_;
};

}  // namespace annulus::comm
