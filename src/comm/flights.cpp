#include "comm/flights.hpp"

#include <algorithm>
#include <utility>

namespace annulus::comm {

Flights::Flights(int lanes, std::function<std::string()> errors, std::function<void()> end)
    : errors_(std::move(errors)),
      end_(std::move(end)),
      lanes_(static_cast<std::size_t>(lanes)),
      since_(lanes_.size()) {}

bool Flights::land(Lane& lane) {
  bool landed = false;
  for (; !lane.empty() && lane.front().marks->done(); landed = true) lane.pop_front();
  return landed;
}

void Flights::launch(int lane, Flight flight) {
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<std::size_t>(lane);
  // Those that have landed go here too: nobody looks where waits have no limit.
  if (land(lanes_[number])) since_[number].reset();
  lanes_[number].push_back(std::move(flight));
}

std::string Flights::look(Watch::Clock::time_point now) {
  std::string failure = errors_();
  if (!failure.empty()) return failure;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (land(lanes_[i])) since_[i].reset();
    if (!since_[i] && !lanes_[i].empty() && lanes_[i].front().marks->begun()) since_[i] = now;
  }
  return {};
}

std::optional<std::size_t> Flights::oldest() const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    if (since_[i] && !lanes_[i].empty() && (!found || *since_[i] < *since_[*found])) found = i;
  return found;
}

double Flights::longest_wait(Watch::Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto lane = oldest();
  return lane ? Watch::in_seconds(now - *since_[*lane]) : 0;
}

std::optional<Watch::Limit> Flights::exceeded(Watch::Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!since_[i] || lanes_[i].empty()) continue;
    const Watch::Limit limit = lanes_[i].front().limit;
    if (limit.count() > 0 && now - *since_[i] > limit) return limit;
  }
  return std::nullopt;
}

std::string Flights::tell(Watch::Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto lane = oldest();
  if (!lane) return {};
  const Flight& flight = lanes_[*lane].front();
  const Watch::Wait wait{Watch::in_seconds(now - *since_[*lane]), flight.pending};
  return flight.tell(&wait);
}

void Flights::forgive(Watch::Clock::time_point from, Watch::Clock::time_point to) {
  const std::lock_guard lock(mutex_);
  for (auto& since : since_)
    if (since && *since <= from) *since += to - from;
}

}  // namespace annulus::comm
