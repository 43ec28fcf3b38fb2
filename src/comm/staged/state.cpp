#include "comm/staged/state.hpp"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include <annulus/core/tensor.hpp>

namespace annulus::comm {

StagedState::~StagedState() {
  // Given up: nobody knows what still writes to the buffers, so they are not used again.
  if (!finished_) staging_->forget(this);
}

StagedState::Message& StagedState::stage(std::vector<Message>& side, void* device, std::size_t bytes,
                                         int peer) {
  Message& message = side.emplace_back();
  message.device = device;
  message.bytes = bytes;
  message.peer = peer;
  message.pieces.resize(bytes / staged_piece_bytes + 1);
  for (std::size_t i = 0; i < message.pieces.size(); ++i)
    message.pieces[i].host =
        staging_->pool.take(std::min(staged_piece_bytes, bytes - i * staged_piece_bytes));
  return message;
}

void StagedState::start(std::span<const Send> sends, std::span<const Receive> receives, int channel) {
  channel_ = channel;
  posted_ = staging_->events.record(queue_);
  sends_.reserve(sends.size());  // the outbox points to their pieces
  const auto in_pieces = [](Message& message, const auto& start) {
    for (std::size_t i = 0; i < message.pieces.size(); ++i) {
      const std::size_t offset = i * staged_piece_bytes;
      start(message.pieces[i], offset, std::min(staged_piece_bytes, message.bytes - offset));
    }
  };
  for (const Receive& receive : receives) {
    Message& message = stage(receives_, receive.data, receive.bytes, receive.peer);
    in_pieces(message, [&](Piece& piece, std::size_t, std::size_t bytes) {
      const Receive part{piece.host.data(), bytes, message.peer};
      piece.request = inner_.exchange(HostExec(), {}, {&part, 1}, channel);
    });
  }
  const Queue& outward = staging_->outward(queue_);
  posted_->block(outward);
  for (const Send& send : sends) {
    Message& message = stage(sends_, const_cast<void*>(send.data), send.bytes, send.peer);
    in_pieces(message, [&](Piece& piece, std::size_t offset, std::size_t bytes) {
      std::byte* const host = piece.host.data();
      if (bytes > 0) outward.copy_to_host(host, static_cast<const std::byte*>(send.data) + offset, bytes);
      staging_->depart({staging_->events.record(outward),
                        &inner_,
                        {host, bytes, send.peer},
                        channel,
                        &piece.request,
                        this});
    });
  }
  staging_->pump();
}

bool StagedState::advance(Message& message, bool lands, bool all) {
  while (message.done < message.pieces.size()) {
    Piece& piece = message.pieces[message.done];
    if (all) {
      piece.request.wait();
    } else if (!piece.request.test()) {
      return false;
    }
    const std::size_t offset = message.done * staged_piece_bytes;
    const std::size_t bytes = std::min(staged_piece_bytes, message.bytes - offset);
    if (lands && bytes > 0) {
      const Queue& inward = staging_->inward(queue_);
      posted_->block(inward);  // the queue has done with what was there before
      inward.copy_from_host(static_cast<std::byte*>(message.device) + offset, piece.host.data(), bytes);
    }
    const std::lock_guard lock(mutex_);
    ++message.done;
  }
  return true;
}

bool StagedState::advance(bool all) {
  const bool empty = staging_->pump();  // a piece that is still in the outbox has no request to be asked
  bool done = true;
  for (Message& message : receives_) done = advance(message, true, all) && done;
  if (!empty) return false;
  for (Message& message : sends_) done = advance(message, false, all) && done;
  if (done) finish();
  return done;
}

void StagedState::finish() {
  landed_ = staging_->events.record(staging_->inward(queue_));
  landed_->block(queue_);
  finished_ = true;
  for (auto* side : {&sends_, &receives_}) {
    for (Message& message : *side) {
      for (Piece& piece : message.pieces) {
        piece.host.used = landed_;
        staging_->pool.give_back(std::move(piece.host));
      }
    }
  }
}

void StagedState::wait() {
  const Watch::Waiting waiting(inner_.watch(), [this] { return pending(); });
  while (!staging_->pump()) {
    if (advance(false)) return;
    std::this_thread::yield();
  }
  advance(true);
}

bool StagedState::test() {
  return advance(false);
}

void StagedState::drop() noexcept {
  if (std::uncaught_exceptions() > 0) return;  // the destructor gives up
  try {
    wait();
    landed_->wait();
  } catch (const std::exception&) {  // a device that no longer copies, or a peer: the next call says so
  }
}

std::vector<Pending> StagedState::pending() const {
  const std::lock_guard lock(mutex_);
  std::vector<Pending> messages;
  for (const auto* side : {&receives_, &sends_}) {
    for (std::size_t i = 0; i < side->size(); ++i) {
      const Message& m = (*side)[i];
      if (m.done < m.pieces.size())
        messages.push_back({side == &receives_, i, m.peer, inner_.job_rank(m.peer), channel_, m.bytes});
    }
  }
  return messages;
}

}  // namespace annulus::comm
