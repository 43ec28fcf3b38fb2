#pragma once

#include <mutex>

#include "attention/comm/mpi/communicator.hpp"
#include "attention/comm/watchdog.hpp"

namespace annulus::comm {

/// An exchange under way over MPI.
class MpiState final : public Request::State {
 public:
  explicit MpiState(std::shared_ptr<MpiLink> link)
      : link_(std::move(link)), posted_(Watchdog::Clock::now()), looked_(posted_) {}
  /// Usually nothing is left; else peers may never answer.
  ~MpiState() override;

  /// Starts one message, in chunks.
  void receive(const Receive& message, int channel, std::size_t chunk_bytes);
  void send(const Send& message, int channel, std::size_t chunk_bytes);

  void wait() override;
  bool test() override;
  void keep(const std::string& error) noexcept override { link_->swallowed = error; }

 private:
  /// What a finished chunk is checked against.
  struct MpiChunk {
    int peer = 0, channel = 0;
    bool receives = false;
    std::size_t index = 0;  ///< of the message among the receives, or the sends
    bool done = false;
    std::size_t group = 0;   ///< its PeerMessages
    int count = 0;           ///< bytes of this chunk
    std::size_t offset = 0;  ///< of this chunk in the message
    std::size_t bytes = 0;   ///< of the message
  };

  /// All messages from a peer, or to it: they share the link.
  struct PeerMessages {
    int peer = 0;
    bool receives = false;
    std::size_t bytes = 0;
    std::size_t under_way = 0;  ///< chunks
  };
  PeerMessages& messages_of(MpiChunk& chunk);

  template <class Start>
  void in_chunks(MpiChunk chunk, std::size_t chunk_bytes, const Start& start);
  /// Looks at the requests that Waitsome or Testsome reports as finished. Throws Error unless all went well
  /// and every receive got what it expected. At once, not when all are finished: the rest of a message of the
  /// wrong size may never come. `watched`: the call returned when something finished.
  void check(int code, const char* call, int finished, bool watched);
  /// The last chunk of these messages has finished.
  void tell_time(const PeerMessages& messages, bool watched) const;
  [[noreturn]] void size_error(const MpiChunk& chunk, const std::string& sent) const;
  bool complete() const;
  /// What has not been seen to complete. Another thread may ask during wait().
  std::vector<Pending> pending() const;

  std::shared_ptr<MpiLink> link_;
  std::vector<MPI_Request> requests_;  ///< MPI_REQUEST_NULL once finished
  std::vector<MpiChunk> chunks_;
  std::vector<PeerMessages> groups_;
  Watchdog::Clock::time_point posted_, looked_;  ///< looked_: when a call last said what has finished
  std::size_t receives_ = 0, sends_ = 0;
  mutable std::mutex mutex_;  ///< of MpiChunk::done
  std::vector<int> indices_;  ///< of those that the last call reports
  std::vector<MPI_Status> statuses_;
};

}  // namespace annulus::comm
