#include "attention/comm/staged/state.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/reductions/stages.hpp"

namespace annulus::comm {

StagedState::~StagedState() {
  // Given up: nobody knows what still writes to the buffers, so they are not used again.
  if (!finished_) staging_->forget(this);
}

StagedState::StagedMessage& StagedState::stage(std::vector<StagedMessage>& side, void* device,
                                               std::size_t bytes, int peer) {
  StagedMessage& message = side.emplace_back();
  message.device = device;
  message.bytes = bytes;
  message.peer = peer;
  message.chunks.resize(bytes / staged_chunk_bytes + 1);
  for (std::size_t i = 0; i < message.chunks.size(); ++i)
    message.chunks[i].host = pool_.take(std::min(staged_chunk_bytes, bytes - i * staged_chunk_bytes));
  return message;
}

void StagedState::start(std::span<const Send> sends, std::span<const Receive> receives, int channel) {
  channel_ = channel;
  posted_ = staging_->events.record(queue_);
  sends_.reserve(sends.size());  // the outbox points to their chunks
  const auto in_chunks = [](StagedMessage& message, const auto& start) {
    for (std::size_t i = 0; i < message.chunks.size(); ++i) {
      const std::size_t offset = i * staged_chunk_bytes;
      start(message.chunks[i], offset, std::min(staged_chunk_bytes, message.bytes - offset));
    }
  };
  for (const Receive& receive : receives) {
    StagedMessage& message = stage(receives_, receive.data, receive.bytes, receive.peer);
    in_chunks(message, [&](StagedChunk& chunk, std::size_t, std::size_t bytes) {
      const Receive part{chunk.host.data(), bytes, message.peer};
      chunk.request = inner_.exchange(HostExec(), {}, {&part, 1}, channel);
    });
  }
  const Queue& outward = staging_->outward(queue_);
  posted_->block(outward);
  for (const Send& send : sends) {
    StagedMessage& message = stage(sends_, const_cast<void*>(send.data), send.bytes, send.peer);
    in_chunks(message, [&](StagedChunk& chunk, std::size_t offset, std::size_t bytes) {
      std::byte* const host = chunk.host.data();
      if (bytes > 0) outward.copy_to_host(host, static_cast<const std::byte*>(send.data) + offset, bytes);
      staging_->depart({staging_->events.record(outward),
                        &inner_,
                        {host, bytes, send.peer},
                        channel,
                        &chunk.request,
                        this});
    });
  }
  staging_->pump();
}

bool StagedState::advance(StagedMessage& message, bool lands, bool all) {
  while (message.done < message.chunks.size()) {
    StagedChunk& chunk = message.chunks[message.done];
    if (all) {
      chunk.request.wait();
    } else if (!chunk.request.test()) {
      return false;
    }
    const std::size_t offset = message.done * staged_chunk_bytes;
    const std::size_t bytes = std::min(staged_chunk_bytes, message.bytes - offset);
    if (lands && bytes > 0) {
      const Queue& inward = staging_->inward(queue_);
      posted_->block(inward);  // the queue has done with what was there before
      inward.copy_from_host(static_cast<std::byte*>(message.device) + offset, chunk.host.data(), bytes);
    }
    const std::lock_guard lock(mutex_);
    ++message.done;
  }
  return true;
}

bool StagedState::advance(bool all) {
  const bool empty = staging_->pump();  // a chunk that is still in the outbox has no request to be asked
  bool done = true;
  for (StagedMessage& message : receives_) done = advance(message, true, all) && done;
  if (!empty) return false;
  for (StagedMessage& message : sends_) done = advance(message, false, all) && done;
  if (done) give_back_chunks();
  return done;
}

void StagedState::give_back_chunks() {
  landed_ = staging_->events.record(staging_->inward(queue_));
  landed_->block(queue_);
  finished_ = true;
  for (auto* side : {&sends_, &receives_}) {
    for (StagedMessage& message : *side) {
      for (StagedChunk& chunk : message.chunks) {
        chunk.host.used = landed_;
        pool_.give_back(std::move(chunk.host));
      }
    }
  }
}

void StagedState::wait() {
  const Watchdog* const watchdog = inner_.watchdog();
  const auto limit = watchdog != nullptr ? watchdog->timeout() : Watchdog::Timeout::zero();
  const auto begun = Watchdog::Clock::now();
  const Watchdog::Waiting waiting(inner_.watchdog(), [this] { return pending(); });
  while (!staging_->pump() || stages_under_way()) {
    if (advance(false)) return;
    advance_stages();
    // What is lost never comes: the wait of the inner communicator says so.
    if (limit.count() > 0 && Watchdog::Clock::now() - begun > limit) break;
    std::this_thread::yield();
  }
  advance(true);
}

bool StagedState::test() {
  return advance(false);
}

std::vector<Pending> StagedState::pending() const {
  const std::lock_guard lock(mutex_);
  std::vector<Pending> messages;
  for (const auto* side : {&receives_, &sends_}) {
    for (std::size_t i = 0; i < side->size(); ++i) {
      const StagedMessage& m = (*side)[i];
      if (m.done < m.chunks.size())
        messages.push_back({side == &receives_, i, m.peer, inner_.world_rank(m.peer), channel_, m.bytes});
    }
  }
  return messages;
}

}  // namespace annulus::comm
