#pragma once

#include <Kokkos_Core.hpp>
#include <deque>
#include <vector>

#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/execution/event.hpp"

namespace annulus {

namespace detail {

/// Pairs of points in a stream (a cudaStream_t or hipStream_t), and the time between them.
class StreamIntervals {
 public:
  void begin(void* stream);
  void end(void* stream);
  /// Seconds inside all pairs; waits for the last one.
  double seconds();
  void reset();

 private:
  struct Pair {
    Event begin, end;
    bool ended = false;
  };
  Event take();
  /// Adds up the pairs whose end the stream has passed; all of them, waiting, where `all`.
  void collect(bool all);

  std::deque<Pair> open_;     ///< in the order of the stream
  std::vector<Event> spare_;  ///< with Timing::on
  double seconds_ = 0;
};

}  // namespace detail

/// Seconds between begin and end, added up over all such pairs: of the host's thread, or, where `Exec` has a
/// stream, of the stream, so that what it waited for counts and not how long the host took to say so.
template <class Exec>
class Stopwatch {
 public:
  void begin(const Exec& exec) {
    if constexpr (has_stream<Exec>) {
      stream_.begin(stream_of(exec));
    } else {
      timer_.reset();
    }
  }
  void end(const Exec& exec) {
    if constexpr (has_stream<Exec>) {
      stream_.end(stream_of(exec));
    } else {
      seconds_ += timer_.seconds();
    }
  }
  double seconds() {
    if constexpr (has_stream<Exec>) seconds_ = stream_.seconds();
    return seconds_;
  }
  void reset() {
    stream_.reset();
    seconds_ = 0;
  }

 private:
  Kokkos::Timer timer_;
  detail::StreamIntervals stream_;
  double seconds_ = 0;
};

}  // namespace annulus
