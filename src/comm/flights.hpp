#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <annulus/comm/watch.hpp>

namespace annulus::comm {

/// Exchanges that streams wait for while the host goes on: which of them are under way, and for how long they
/// have waited for others. Knows no device: what a stream has come to is asked of `Marks`.
///
/// Exchanges of one lane (a stream) begin and end one after the other. An exchange waits for others from the
/// moment on at which it is the first of its lane and the work of its own rank that it depends on is done: a
/// rank that computes long makes its own transfers wait for nobody. The clock starts with the first look()
/// after that, some tenths of a second late at most.
class Flights final : public Watch::Background {
 public:
  /// Where a stream is. Any thread may ask.
  class Marks {
   public:
    virtual ~Marks() = default;
    virtual bool begun() const = 0;  ///< the work of the rank itself that the exchange depends on is done
    virtual bool done() const = 0;   ///< the exchange is
  };

  struct Flight {
    std::unique_ptr<const Marks> marks;
    Watch::Tell tell;  ///< where the rank was when it posted (Watch::note)
    std::vector<Pending> pending;
    Watch::Limit limit{0};  ///< zero: none
  };

  /// `errors` says what the transport has met on its own (nothing as a rule), `end` ends all exchanges.
  Flights(int lanes, std::function<std::string()> errors, std::function<void()> end);

  /// An exchange has been enqueued on its lane.
  void launch(int lane, Flight flight);

  std::string look(Watch::Clock::time_point now) override;
  double longest_wait(Watch::Clock::time_point now) const override;
  std::optional<Watch::Limit> exceeded(Watch::Clock::time_point now) const override;
  std::string tell(Watch::Clock::time_point now) const override;
  void forgive(Watch::Clock::time_point from, Watch::Clock::time_point to) override;
  void abort() noexcept override { end_(); }

 private:
  using Lane = std::deque<Flight>;

  /// Takes out what is done; true when there was any.
  static bool land(Lane& lane);
  /// The lane whose first exchange has waited longest.
  std::optional<std::size_t> oldest() const;

  std::function<std::string()> errors_;
  std::function<void()> end_;
  mutable std::mutex mutex_;
  std::vector<Lane> lanes_;
  std::vector<std::optional<Watch::Clock::time_point>> since_;  ///< of each lane's first, once it waits
};

}  // namespace annulus::comm
