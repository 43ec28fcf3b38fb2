#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <annulus/comm/nccl.hpp>

#include "comm/event.hpp"
#include "comm/flights.hpp"

namespace annulus::comm {

/// Throws Error with the call and what CUDA or NCCL says unless all went well.
void cuda_check(cudaError_t code, const char* call);
void nccl_check(ncclResult_t code, const char* call, ncclComm_t communicator = nullptr);
#define ANNULUS_CUDA_CALL(function, ...) ::annulus::comm::cuda_check(function(__VA_ARGS__), #function)
#define ANNULUS_NCCL_CALL(function, ...) ::annulus::comm::nccl_check(function(__VA_ARGS__), #function)

/// The NCCL communicators of a rank, one a channel and one for collectives, each with its stream. Shared by
/// the Communicator and the requests under way. The rank's Watch looks at what is under way on them.
class NcclLink {
 public:
  /// Collective over `control`.
  NcclLink(Communicator& control, const NcclOptions& options);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  struct Lane {
    ncclComm_t communicator = nullptr;
    cudaStream_t stream = nullptr;
    int number = 0;
  };
  int channels() const { return static_cast<int>(lanes_.size()) - 1; }
  const Lane& lane(int channel) const { return lanes_[static_cast<std::size_t>(channel)]; }
  const Lane& collectives() const { return lanes_.back(); }

  /// Lets `call` enqueue an exchange or a collective on the lane, behind what `queue` holds. `pending` is
  /// what it waits for. The event is behind it.
  template <class Call>
  EventPool::Taken launch(const Queue& queue, const Lane& lane, std::vector<Pending> pending,
                          const Call& call) {
    poll();
    const EventPool::Taken begun = EventPool::take(events_), done = EventPool::take(events_);
    begun->record(queue);
    begun->hold(lane.stream);
    {
      // The first message between two ranks connects them, for which NCCL lets the host wait.
      const Watch::Waiting waiting(watch_, [&] { return pending; });
      call();
    }
    done->record(lane.stream);
    track(lane, begun, done, std::move(pending));
    return done;
  }

  /// Throws what NCCL met since it was asked last, and after abort().
  void poll() const;

  /// Ends the kernels of all exchanges under way, wherever they wait. Nothing can be posted any more.
  void abort() noexcept;

  /// How NCCL gets to the other ranks: "NVLink to 3 ranks, network to 4 ranks".
  const std::string& ways() const { return ways_; }

 private:
  void connect(Communicator& control, const NcclOptions& options);
  void track(const Lane& lane, const EventPool::Taken& begun, const EventPool::Taken& done,
             std::vector<Pending> pending);
  /// What NCCL has met since it was asked last; nothing as a rule. Any thread may ask.
  std::string errors() const;

  int rank_ = 0, device_ = 0;
  Watch* watch_;
  std::string ways_;
  std::vector<Lane> lanes_;
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
  Flights flights_;
  mutable std::mutex mutex_;  ///< of the communicators against abort()
  std::atomic<bool> aborted_ = false;
};

}  // namespace annulus::comm
