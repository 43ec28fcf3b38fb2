#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

namespace annulus {

class Queue;

/// A point in the work of a Queue, which other queues and the host can wait for. On a GPU it is an
/// event of CUDA or HIP, made when it is first recorded. Queues of the host, and of devices whose events are
/// not known here, have no such points: there record() waits until the work is done, and the point counts as
/// passed.
///
/// Every call throws Error with the name of the runtime's function when it reports a failure, also that of an
/// earlier kernel.
class Event {
 public:
  enum class Timing : std::uint8_t { off, on };

  /// `Timing::on`: seconds_between accepts the event, which takes the device longer to record.
  explicit Event(Timing timing = Timing::off) : timing_(timing) {}
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// The point comes after the work that `queue` (or `stream`, a cudaStream_t or hipStream_t of a library)
  /// holds now. It replaces the point that was recorded before.
  void record(const Queue& queue);
  void record(void* stream);
  /// Work enqueued from now on waits for the point; the host does not. Recording the event again does not
  /// change what that work waits for.
  void block(const Queue& queue) const;
  void block(void* stream) const;
  /// Whether the work before the point is done; true when nothing was recorded. Any thread may ask.
  bool done() const;
  /// The host waits for the work before the point.
  void wait() const;

  /// Seconds from one point to a later one. Both events have Timing::on and are done, and both were recorded
  /// in streams of one device or both on the host; throws Error otherwise.
  static double seconds_between(const Event& begin, const Event& end);

 private:
  using Clock = std::chrono::steady_clock;

  void* handle_ = nullptr;  ///< a cudaEvent_t or hipEvent_t
  Timing timing_;
  bool on_stream_ = false;      ///< the point lies in a stream, not behind work that is done
  Clock::time_point passed_{};  ///< when a timed point of the host was
};

/// Events for reuse: making one takes longer than a small message. Thread safe. Events may outlive the pool.
class EventPool {
 public:
  /// An event of the pool, which goes back with its last copy.
  using Taken = std::shared_ptr<Event>;

  EventPool();
  /// An event without Timing. It may hold a point of its last user: record it first.
  Taken take();
  /// An event behind what `queue` holds now.
  Taken record(const Queue& queue);

 private:
  struct Free;
  std::shared_ptr<Free> free_;
};

}  // namespace annulus
