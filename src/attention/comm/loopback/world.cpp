#include "attention/comm/loopback/world.hpp"

#include <algorithm>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstring>

#include "attention/comm/point_to_point.hpp"
#include "attention/comm/reductions/stages.hpp"

namespace annulus::comm {

namespace {

constexpr auto look_again_after = std::chrono::milliseconds(1);

}  // namespace

std::string LoopbackWorld::LoopbackMessage::describe() const {
  return is_send ? fmt::format("{} bytes to rank {} on {}", bytes, target, channel_name(channel))
                 : fmt::format("{} bytes from rank {} on {}", bytes, source, channel_name(channel));
}

bool LoopbackWorld::Operation::complete() const {
  return std::all_of(messages.begin(), messages.end(),
                     [](const LoopbackMessage& message) { return message.done; });
}

LoopbackWorld::LoopbackWorld(int ranks, std::chrono::milliseconds stall_timeout, Wire* wire)
    : stall_timeout_(stall_timeout), wire_(wire) {
  for (int rank = 0; rank < ranks; ++rank) {
    ranks_.push_back(std::make_unique<LoopbackRank>());
    ranks_.back()->watchdog.set_timeout(stall_timeout);
  }
}

void LoopbackWorld::enter(int rank) {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)]->thread = std::this_thread::get_id();
}

void LoopbackWorld::leave(int rank) {
  std::unique_lock lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)]->running = false;
  std::string stuck = deadlock();
  if (stuck.empty()) return;
  lock.unlock();
  stuck += tell_all();
  lock.lock();
  record_failure(stuck, std::make_exception_ptr(Error(stuck)));
}

void LoopbackWorld::fail(int rank, const std::string& message, std::exception_ptr exception) {
  const std::lock_guard lock(mutex_);
  record_failure(fmt::format("rank {} failed: {}", rank, message), exception);
}

void LoopbackWorld::record_failure(const std::string& message, std::exception_ptr exception) {
  if (failure_) return;
  failure_ = exception;
  failure_text_ = message;
  for (const auto& rank : ranks_) rank->changed.notify_all();
}

std::exception_ptr LoopbackWorld::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void LoopbackWorld::check_failure() const {
  if (failure_) throw Error(failure_text_);
}

void LoopbackWorld::check_result(const Operation& operation) const {
  for (const LoopbackMessage& message : operation.messages)
    if (!message.error.empty()) throw Error(message.error);
}

void LoopbackWorld::match(LoopbackMessage& send, LoopbackMessage& receive) {
  if (send.bytes != receive.bytes) {
    send.error = receive.error =
        fmt::format("rank {} sends {}, which expects {} bytes: both sides must agree on the size",
                    send.source, send.describe(), receive.bytes);
  } else {
    const auto begin = Watchdog::Clock::now();
    if (send.bytes != 0) std::memcpy(receive.data, send.data, send.bytes);
    if (wire_) return launch(send, receive);
    tell_time({send.context, send.source, send.target, send.channel}, send.bytes,
              Watchdog::Clock::now() - begin);
  }
  complete(send);
  complete(receive);
}

void LoopbackWorld::tell_time(const Key& key, std::size_t bytes, Watchdog::Clock::duration time) {
  const auto [context, source, target, channel] = key;
  if (channel < 0) return;
  const double seconds = Watchdog::in_seconds(time);
  watchdog(source)->message_times().add(target, false, bytes, seconds);
  watchdog(target)->message_times().add(source, true, bytes, seconds);
}

void LoopbackWorld::complete(LoopbackMessage& message) {
  message.done = true;
  LoopbackRank& rank = *ranks_[static_cast<std::size_t>(message.owner())];
  ++rank.completed;
  rank.told = false;
}

void LoopbackWorld::tell_owners(std::unique_lock<std::mutex> lock) {
  std::vector<LoopbackRank*> untold;
  for (const auto& rank : ranks_)
    if (!std::exchange(rank->told, true)) untold.push_back(rank.get());
  // A thread that is woken under the lock would wait for it at once.
  lock.unlock();
  for (LoopbackRank* rank : untold) rank->changed.notify_all();
}

void LoopbackWorld::launch(LoopbackMessage& send, LoopbackMessage& receive) {
  const std::int64_t exchange = send.exchange = receive.exchange = launched_++;
  in_flight_[exchange] = {&send,
                          &receive,
                          {send.context, send.source, send.target, send.channel},
                          send.bytes,
                          Watchdog::Clock::now()};
  // The wire may outlive the world, when ranks have failed meanwhile.
  const auto on_landing = [&](LoopbackMessage* MessageOnWire::*side) {
    return [weak = weak_from_this(), exchange, side] {
      if (const auto world = weak.lock()) world->land(exchange, side);
    };
  };
  wire_->carry({send.source, send.target, send.context, send.channel, send.bytes},
               on_landing(&MessageOnWire::send), on_landing(&MessageOnWire::receive));
}

void LoopbackWorld::land(std::int64_t exchange, LoopbackMessage* MessageOnWire::*side) {
  std::unique_lock lock(mutex_);
  const auto place = in_flight_.find(exchange);
  if (LoopbackMessage* message = std::exchange(place->second.*side, nullptr)) {
    complete(*message);
  }
  if (side != &MessageOnWire::receive) return tell_owners(std::move(lock));  // the send's side comes first
  const MessageOnWire& message = place->second;
  const auto now = Watchdog::Clock::now();
  Burst& burst = bursts_[message.key];
  if (message.matched > burst.end) burst = {.begin = message.matched, .end = now};
  burst.bytes += message.bytes;
  burst.end = now;
  tell_time(message.key, burst.bytes, now - burst.begin);
  in_flight_.erase(place);
  // Those who wait saw it on its way: now they may find that nothing else is.
  if (in_flight_.empty()) {
    for (const auto& rank : ranks_) rank->told = false;
  }
  tell_owners(std::move(lock));
}

void LoopbackWorld::post(Operation& operation) {
  std::unique_lock lock(mutex_);
  LoopbackRank& rank = *ranks_[static_cast<std::size_t>(operation.rank)];
  check_failure();
  if (std::this_thread::get_id() != rank.thread) one_thread_a_rank_ = false;
  if (!rank.swallowed.empty()) throw Error(std::exchange(rank.swallowed, {}));
  for (LoopbackMessage& message : operation.messages) {
    const Key key{message.context, message.source, message.target, message.channel};
    const auto place = mailboxes_.try_emplace(key).first;
    Mailbox& box = place->second;
    auto& others = message.is_send ? box.receives : box.sends;
    if (others.empty()) {
      (message.is_send ? box.sends : box.receives).push_back(&message);
      continue;
    }
    LoopbackMessage& other = *others.front();
    others.pop_front();
    if (box.sends.empty() && box.receives.empty()) mailboxes_.erase(place);
    message.is_send ? match(message, other) : match(other, message);
  }
  tell_owners(std::move(lock));
}

bool LoopbackWorld::test(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  if (!operation.complete()) {
    check_failure();
    return false;
  }
  check_result(operation);
  return true;
}

void LoopbackWorld::wait(const Operation& operation) {
  LoopbackRank& rank = *ranks_[static_cast<std::size_t>(operation.rank)];
  const Watchdog::Waiting watched(&rank.watchdog, [&] { return pending(operation); });
  auto timeout = stall_timeout_;
  if (const auto set = rank.watchdog.timeout(); set.count() > 0) timeout = std::min(timeout, set);
  std::unique_lock lock(mutex_);
  if (std::this_thread::get_id() != rank.thread) one_thread_a_rank_ = false;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  struct ShownWait {  // shows the others what this rank waits for
    LoopbackRank& rank;
    ShownWait(LoopbackRank& r, const Operation& o) : rank(r) { rank.waits_for = &o; }
    ~ShownWait() { rank.waits_for = nullptr; }
  } const waiting(rank, operation);
  while (!operation.complete()) {
    check_failure();
    bool looks_again = false;
    if (const std::int64_t completed = rank.completed; rank.seen != completed) {
      if (stages_under_way()) {  // one may be complete, and the next one's turn
        lock.unlock();
        advance_stages();
        lock.lock();
      }
      // Copies of a device complete without a message: a rank with stages there is never stuck.
      looks_again = has_device && stages_under_way();
      rank.seen = looks_again ? LoopbackRank::looking : completed;
      if (!looks_again) continue;
    }
    if (const std::string stuck = deadlock(); !stuck.empty()) {
      lock.unlock();
      const std::string all = tell_all();
      lock.lock();
      annulus::fail("{}{}", stuck, all);
    }
    const auto until =
        looks_again ? std::min(deadline, std::chrono::steady_clock::now() + look_again_after) : deadline;
    if (rank.changed.wait_until(lock, until) == std::cv_status::timeout && until == deadline &&
        !operation.complete() && !failure_) {
      const auto pending = std::find_if(operation.messages.begin(), operation.messages.end(),
                                        [](const LoopbackMessage& message) { return !message.done; });
      const std::string what = pending->describe();
      const char* why = pending->exchange == LoopbackMessage::none
                            ? "the other side was never posted"
                            : "the emulated link has not carried it yet";
      lock.unlock();
      const std::string all = tell_all();
      lock.lock();
      annulus::fail("rank {} has waited {} ms for {}: {}{}", operation.rank, timeout.count(), what, why, all);
    }
  }
  check_result(operation);
}

std::string LoopbackWorld::tell_all() const {
  std::string text;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (ranks_[r]->watchdog.knows()) text += fmt::format("; rank {}: {}", r, ranks_[r]->watchdog.describe());
  return text;
}

std::vector<Pending> LoopbackWorld::pending(const Operation& operation) const {
  const std::lock_guard lock(mutex_);
  std::vector<Pending> messages;
  for (const LoopbackMessage& m : operation.messages)
    if (!m.done)
      messages.push_back({!m.is_send, m.index, m.peer, m.is_send ? m.target : m.source, m.channel, m.bytes});
  return messages;
}

std::string LoopbackWorld::deadlock() const {
  if (!one_thread_a_rank_ || !in_flight_.empty()) return {};
  const auto running = [](const auto& rank) { return rank->running; };
  const auto continues = [](const auto& rank) {
    return rank->running &&
           (rank->waits_for == nullptr || rank->waits_for->complete() || rank->seen != rank->completed);
  };
  // Nobody waits once all have returned.
  if (std::ranges::none_of(ranks_, running) || std::ranges::any_of(ranks_, continues)) return {};
  std::string text = "deadlock: no rank can continue";
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r]->running) {
      text += fmt::format("; rank {} has returned", r);
      continue;
    }
    for (const LoopbackMessage& message : ranks_[r]->waits_for->messages)
      if (!message.done)
        text +=
            fmt::format("; rank {} {} {}", r, message.is_send ? "sends" : "waits for", message.describe());
  }
  return text;
}

void LoopbackWorld::withdraw(Operation& operation) noexcept {
  const std::lock_guard lock(mutex_);
  for (LoopbackMessage& message : operation.messages) {
    if (message.done) continue;
    message.done = true;
    if (message.exchange != LoopbackMessage::none) {
      in_flight_.at(message.exchange).*(message.is_send ? &MessageOnWire::send : &MessageOnWire::receive) =
          nullptr;
      continue;
    }
    const auto place = mailboxes_.find({message.context, message.source, message.target, message.channel});
    if (place == mailboxes_.end()) continue;  // never posted
    std::erase(message.is_send ? place->second.sends : place->second.receives, &message);
    if (place->second.sends.empty() && place->second.receives.empty()) mailboxes_.erase(place);
  }
}

void LoopbackWorld::remember(int rank, const std::string& error) noexcept {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)]->swallowed = error;
}

int LoopbackWorld::context_of(int parent, int split, int color) {
  const std::lock_guard lock(mutex_);
  return contexts_.try_emplace({parent, split, color}, static_cast<int>(contexts_.size()) + 1).first->second;
}

}  // namespace annulus::comm
