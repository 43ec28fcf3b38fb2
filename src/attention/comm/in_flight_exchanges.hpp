#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "attention/comm/watchdog.hpp"

namespace annulus::comm {

/// Exchanges that streams wait for while the host goes on: which of them are under way, and for how long they
/// have waited for others. Knows no device: what a stream has come to is asked of `StreamProgress`.
///
/// Exchanges of one stream begin and end one after the other. An exchange waits for others from the
/// moment on at which it is the first of its stream and the work of its own rank that it depends on is done:
/// a rank that computes long makes its own transfers wait for nobody. The clock starts with the first poll()
/// after that, some tenths of a second late at most.
class InFlightExchanges final : public Watchdog::Background {
 public:
  /// Where a stream is. Any thread may ask.
  class StreamProgress {
   public:
    virtual ~StreamProgress() = default;
    virtual bool begun() const = 0;  ///< the work of the rank itself that the exchange depends on is done
    virtual bool done() const = 0;   ///< the exchange is
  };

  struct InFlightExchange {
    std::unique_ptr<const StreamProgress> progress;
    Watchdog::Describe describe;  ///< where the rank was when it posted (Watchdog::note)
    std::vector<Pending> pending;
    Watchdog::Timeout timeout{0};  ///< zero: none
  };

  /// `errors` says what the transport has met on its own (nothing as a rule), `end` ends all exchanges.
  InFlightExchanges(int streams, std::function<std::string()> errors, std::function<void()> end);

  /// An exchange has been enqueued on its stream.
  void add(int stream, InFlightExchange exchange);

  std::string poll(Watchdog::Clock::time_point now) override;
  double longest_wait(Watchdog::Clock::time_point now) const override;
  std::optional<Watchdog::Timeout> exceeded(Watchdog::Clock::time_point now) const override;
  std::string describe(Watchdog::Clock::time_point now) const override;
  void exclude_suspended_time(Watchdog::Clock::time_point from, Watchdog::Clock::time_point to) override;
  void abort() noexcept override { end_(); }

 private:
  using StreamExchanges = std::deque<InFlightExchange>;

  /// Takes out what is done; true when there was any.
  static bool retire(StreamExchanges& stream);
  /// The stream whose first exchange has waited longest.
  std::optional<std::size_t> oldest() const;

  std::function<std::string()> errors_;
  std::function<void()> end_;
  mutable std::mutex mutex_;
  std::vector<StreamExchanges> streams_;
  std::vector<std::optional<Watchdog::Clock::time_point>> since_;  ///< of each stream's first, once it waits
};

}  // namespace annulus::comm
