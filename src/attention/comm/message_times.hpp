#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace annulus::comm {

/// The fastest messages of a link, as one of its two ranks saw it. Ranks send it as bytes.
struct MessageTime {
  int peer = 0;               ///< number of the other rank in the whole job
  bool receives = false;      ///< messages from the peer; else those to it
  std::int64_t messages = 0;  ///< that were timed
  std::int64_t bytes = 0;     ///< of the fastest ones, which travelled together
  double seconds = 0;         ///< of these

  double rate() const { return static_cast<double>(bytes) / seconds; }
};

/// How long the messages of callers' channels took between this rank and others, whether anybody waited for
/// them or kernels hid them.
///
/// A rate must say what the link carries, not which rank came late. Loopback counts from the moment at which
/// both ranks have posted. A rank of MPI or NCCL knows only when it posted itself (NCCL: when its stream came
/// to the exchange), so a rank that posts first counts the wait for its peer, and one that posts last does
/// not. Hence only the fastest message counts: whoever reads the times of both ranks takes the faster one,
/// which is as slow as the link where the link is slow, and seldom slow where it is not. What is left is a
/// rank that is late for all messages of an exchange (training::Stragglers allows for it).
///
/// Messages that share the link count together: in loopback those that a wire carries without a pause, over
/// MPI those of an exchange, over NCCL likewise.
///
/// Loopback times every message. NCCL and copy engines time exchanges with one peer each way, by events of
/// the device. MPI times what ended while the host watched, in waits and tests that follow one another
/// closely: most of what kernels hide is not timed there.
///
/// Thread safe.
class MessageTimes {
 public:
  /// Shorter messages tell of latency, and of sends that end in a buffer.
  static constexpr std::size_t min_bytes = std::size_t{1} << 16;

  void add(int peer, bool receives, std::size_t bytes, double seconds);
  /// One entry for each peer and direction since the last call.
  std::vector<MessageTime> take();

 private:
  std::mutex mutex_;
  std::map<std::pair<int, bool>, MessageTime> fastest_;  ///< by peer and direction
};

}  // namespace annulus::comm
