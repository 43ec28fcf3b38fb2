#include "attention/comm/in_flight_exchanges.hpp"

#include <utility>

namespace annulus::comm {

InFlightExchanges::InFlightExchanges(int streams, std::function<std::string()> errors,
                                     std::function<void()> end)
    : errors_(std::move(errors)),
      end_(std::move(end)),
      streams_(static_cast<std::size_t>(streams)),
      since_(streams_.size()) {}

bool InFlightExchanges::retire(StreamExchanges& stream) {
  bool retired = false;
  for (; !stream.empty() && stream.front().progress->done(); retired = true) stream.pop_front();
  return retired;
}

void InFlightExchanges::add(int stream, InFlightExchange exchange) {
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<std::size_t>(stream);
  // Those that have retired go here too: nobody looks where waits have no timeout.
  if (retire(streams_[number])) since_[number].reset();
  streams_[number].push_back(std::move(exchange));
}

std::string InFlightExchanges::poll(Watchdog::Clock::time_point now) {
  std::string failure = errors_();
  if (!failure.empty()) return failure;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (retire(streams_[i])) since_[i].reset();
    if (!since_[i] && !streams_[i].empty() && streams_[i].front().progress->begun()) since_[i] = now;
  }
  return {};
}

std::optional<std::size_t> InFlightExchanges::oldest() const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (since_[i] && !streams_[i].empty() && (!found || *since_[i] < *since_[*found])) found = i;
  return found;
}

double InFlightExchanges::longest_wait(Watchdog::Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto stream = oldest();
  return stream ? Watchdog::in_seconds(now - *since_[*stream]) : 0;
}

std::optional<Watchdog::Timeout> InFlightExchanges::exceeded(Watchdog::Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!since_[i] || streams_[i].empty()) continue;
    const Watchdog::Timeout timeout = streams_[i].front().timeout;
    if (timeout.count() > 0 && now - *since_[i] > timeout) return timeout;
  }
  return std::nullopt;
}

std::string InFlightExchanges::describe(Watchdog::Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto stream = oldest();
  if (!stream) return {};
  const InFlightExchange& exchange = streams_[*stream].front();
  const Watchdog::Wait wait{Watchdog::in_seconds(now - *since_[*stream]), exchange.pending};
  return exchange.describe(&wait);
}

void InFlightExchanges::exclude_suspended_time(Watchdog::Clock::time_point from,
                                               Watchdog::Clock::time_point to) {
  const std::lock_guard lock(mutex_);
  for (auto& since : since_)
    if (since && *since <= from) *since += to - from;
}

}  // namespace annulus::comm
