#include "attention/comm/staged/staging.hpp"

#include <algorithm>

#include "attention/comm/staged/state.hpp"

namespace annulus::comm {

namespace {

/// Calls visit(bytes, count): as many pinned buffers of each size as messages of this load may take at once.
/// A chunk is longer than half of its buffer, but for the smallest buffers, and all chunks of a message but
/// the last are full.
template <class Visit>
void for_each_buffer_size(const ExchangeLoad& load, const Visit& visit) {
  const auto messages = static_cast<std::size_t>(load.messages);
  for (std::size_t size = PinnedPool::least_bytes; size <= staged_chunk_bytes; size *= 2) {
    const std::size_t full = size == staged_chunk_bytes ? load.bytes / size : 0;
    const std::size_t count = messages + full;
    visit(size, size == PinnedPool::least_bytes ? count : std::min(count, 2 * load.bytes / size));
  }
}

}  // namespace

void ExchangeLoad::cover(const ExchangeLoad& other) {
  messages = std::max(messages, other.messages);
  bytes = std::max(bytes, other.bytes);
}

void reserve_staging(Communicator& communicator, const ExchangeLoad& load) {
  if (auto* const staging = dynamic_cast<StagesExchanges*>(&communicator)) staging->reserve(load);
}

std::int64_t staging_memory(const ExchangeLoad& load) {
  std::size_t bytes = 0;
  for_each_buffer_size(load, [&](std::size_t size, std::size_t count) { bytes += size * count; });
  return static_cast<std::int64_t>(bytes);
}

void Staging::reserve(const ExchangeLoad& load) {
  for_each_buffer_size(load, [&](std::size_t size, std::size_t count) { exchanges.reserve(size, count); });
}

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
