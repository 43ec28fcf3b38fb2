#pragma once

#include <list>
#include <vector>

#include "attention/comm/watchdog.hpp"
#include "base/kokkos/execution/event.hpp"

namespace annulus::comm {

/// Times exchanges by events of the streams that carry them, without a wait of the host: what streams have
/// passed is looked at when the next exchange begins.
///
/// The messages of an exchange end together, so only exchanges with at most one peer each way say something
/// of a link.
class ExchangeTimer {
 public:
  explicit ExchangeTimer(MessageTimes& times) : times_(times) {}

  /// Around what an exchange enqueues on `stream`, a cudaStream_t; `messages` are those of the exchange.
  void begin(void* stream, const std::vector<Pending>& messages);
  void end(void* stream);

 private:
  struct Direction {
    int peer = none;  ///< number in the whole job
    std::size_t bytes = 0;
    static constexpr int none = -1, several = -2;
    void add(const Pending& message);
  };
  struct TimedExchange {
    Direction sends, receives;
    Event begin{Event::Timing::on}, end{Event::Timing::on};
  };
  /// Tells of the exchanges that streams have passed.
  void collect();

  MessageTimes& times_;
  std::list<TimedExchange> under_way_, spare_;
  bool open_ = false;  ///< the last one under way has no end yet
};

}  // namespace annulus::comm
