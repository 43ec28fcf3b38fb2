#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>

#include <annulus/attention/comm/loopback.hpp>

namespace annulus::comm {

/// Links with a rate of their own for each pair of ranks and direction, which carry one message after the
/// other, on a thread. They keep who sent to whom.
class ThrottledWire final : public Wire {
 public:
  /// `rate(from, to)`: bytes/s.
  explicit ThrottledWire(std::function<double(int, int)> rate =
                             [](int, int) { return std::numeric_limits<double>::infinity(); })
      : rate_(std::move(rate)) {}

  void carry(const Message& message, std::function<void()> left, std::function<void()> arrived) override {
    const std::lock_guard lock(mutex_);
    peers_[message.from].insert(message.to);
    Clock::time_point& free = free_[{message.from, message.to}];
    const std::chrono::duration<double> time(double(message.bytes) / rate_(message.from, message.to));
    free = std::max(free, Clock::now()) + std::chrono::duration_cast<Clock::duration>(time);
    due_.emplace(free, std::pair(std::move(left), std::move(arrived)));
    changed_.notify_one();
  }
  std::map<int, std::set<int>> peers() const {
    const std::lock_guard lock(mutex_);
    return peers_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !due_.empty(); })) {
      const auto next = due_.begin()->first;
      changed_.wait_until(lock, stop, next, [&] { return due_.begin()->first < next; });
      if (Clock::now() < due_.begin()->first) continue;
      const auto [left, arrived] = std::move(due_.begin()->second);
      due_.erase(due_.begin());
      lock.unlock();
      left();
      arrived();
      lock.lock();
    }
  }

  std::function<double(int, int)> rate_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<int, std::set<int>> peers_;
  std::map<std::pair<int, int>, Clock::time_point> free_;  // when the link has carried all that it has
  std::multimap<Clock::time_point, std::pair<std::function<void()>, std::function<void()>>> due_;
  std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};
};

}  // namespace annulus::comm
