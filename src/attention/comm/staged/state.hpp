#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "attention/comm/staged/staging.hpp"
#include "attention/comm/watchdog.hpp"

namespace annulus::comm {

/// Bytes of a message that are copied, sent and received at a time: long against what a message costs, short
/// against those that a step of attention exchanges.
inline constexpr std::size_t staged_chunk_bytes = std::size_t{4} << 20;

/// An exchange of device memory through the host, in chunks: while one travels the next is copied. A message
/// of n bytes is n / chunk full chunks and one of n % chunk (perhaps 0) bytes: the short last chunk makes two
/// sides that disagree on the size notice in every case.
class StagedState final : public Request::State {
 public:
  /// `pool`: of `staging`.
  StagedState(std::shared_ptr<Staging> staging, PinnedPool& pool, Communicator& inner, const Queue& queue)
      : staging_(std::move(staging)), pool_(pool), inner_(inner), queue_(queue) {}
  ~StagedState() override;

  void start(std::span<const Send> sends, std::span<const Receive> receives, int channel);

  void wait() override;
  bool test() override;
  void finish() override {
    wait();
    landed_->wait();
  }

 private:
  /// A part of a message in pinned memory, and its way from or to there.
  struct StagedChunk {
    PinnedPool::Buffer host;
    Request request;
  };
  /// Buffers of long messages are as long as a chunk, those of the last chunks and of short messages powers
  /// of two: messages of any sizes find those that others have left.
  struct StagedMessage {
    void* device = nullptr;
    std::size_t bytes = 0;
    int peer = 0;
    std::vector<StagedChunk> chunks;
    std::size_t done = 0;  ///< chunks that have arrived, or left
  };

  StagedMessage& stage(std::vector<StagedMessage>& side, void* device, std::size_t bytes, int peer);
  /// Takes in what has arrived, in order; everything, waiting, where `all`. True when nothing is left.
  bool advance(bool all);
  bool advance(StagedMessage& message, bool lands, bool all);
  void give_back_chunks();
  std::vector<Pending> pending() const;

  std::shared_ptr<Staging> staging_;
  PinnedPool& pool_;
  Communicator& inner_;
  Queue queue_;
  int channel_ = 0;
  EventPool::Taken posted_;  ///< what the queue held when the exchange was posted
  std::vector<StagedMessage> sends_, receives_;
  bool finished_ = false;
  EventPool::Taken landed_;
  mutable std::mutex mutex_;  ///< of StagedMessage::done
};

}  // namespace annulus::comm
