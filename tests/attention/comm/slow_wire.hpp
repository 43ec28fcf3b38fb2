#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>

#include <annulus/attention/comm/loopback.hpp>

namespace annulus::comm {

/// A thread that carries one message after the other, each for `delay`, and keeps who sent to whom.
class SlowWire final : public Wire {
 public:
  explicit SlowWire(std::chrono::microseconds delay = {}) : delay_(delay) {}

  void carry(const Message& message, std::function<void()> left, std::function<void()> arrived) override {
    const std::lock_guard lock(mutex_);
    peers_[message.from].insert(message.to);
    messages_.emplace_back(std::move(left), std::move(arrived));
    changed_.notify_one();
  }
  std::map<int, std::set<int>> peers() const {
    const std::lock_guard lock(mutex_);
    return peers_;
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !messages_.empty(); })) {
      const auto [left, arrived] = std::move(messages_.front());
      messages_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(delay_);
      left();
      arrived();
      lock.lock();
    }
  }

  std::chrono::microseconds delay_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::pair<std::function<void()>, std::function<void()>>> messages_;
  std::map<int, std::set<int>> peers_;
  std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};
};

}  // namespace annulus::comm
