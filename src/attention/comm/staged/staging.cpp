#include "attention/comm/staged/staging.hpp"

namespace annulus::comm {

const Queue& Staging::outward(const Queue& queue) {
  const std::lock_guard lock(mutex_);
  if (!outward_) outward_ = queue.new_stream();
  return *outward_;
}

const Queue& Staging::inward(const Queue& queue) {
  const std::lock_guard lock(mutex_);
  if (!inward_) inward_ = queue.new_stream();
  return *inward_;
}

void Staging::depart(const Departure& departure) {
  const std::lock_guard lock(mutex_);
  outbox_.push_back(departure);
}

void Staging::send_first() {
  const Departure first = outbox_.front();
  outbox_.pop_front();
  *first.request = first.inner->exchange(HostExec(), {&first.send, 1}, {}, first.channel);
}

bool Staging::pump() {
  const std::lock_guard lock(mutex_);
  while (!outbox_.empty() && outbox_.front().on_host->done()) send_first();
  return outbox_.empty();
}

void Staging::flush() {
  const std::lock_guard lock(mutex_);
  while (!outbox_.empty()) {
    outbox_.front().on_host->wait();
    send_first();
  }
}

void Staging::forget(const void* owner) {
  const std::lock_guard lock(mutex_);
  std::erase_if(outbox_, [&](const Departure& departure) { return departure.owner == owner; });
}

}  // namespace annulus::comm
