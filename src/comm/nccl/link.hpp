#pragma once

#include <nccl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <annulus/comm/nccl.hpp>
#include <annulus/core/event.hpp>

#include "comm/flights.hpp"
#include "core/cuda_call.hpp"

namespace annulus::comm {

/// Throws Error with the call and what NCCL says unless all went well.
void nccl_check(ncclResult_t code, const char* call, ncclComm_t communicator = nullptr);
#define ANNULUS_NCCL_CALL(function, ...) ::annulus::comm::nccl_check(function(__VA_ARGS__), #function)

/// The NCCL communicators of a rank, for each channel and for collectives, each with its stream. Shared by
/// the Communicator and the requests under way. The rank's Watch looks at what is under way on them.
///
/// Where there are several nodes, messages inside of one have communicators of their own: NCCL gives all
/// peers of a communicator as many of its channels as the slowest of them can use, so that one peer behind a
/// network card would leave NVLink a fraction of its rate.
class NcclLink {
 public:
  /// Collective over `control`.
  NcclLink(Communicator& control, const NcclOptions& options);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  struct Path {
    ncclComm_t communicator = nullptr;
    cudaStream_t stream = nullptr;
  };
  struct Lane {
    Path all;     ///< to every rank
    Path inside;  ///< to the ranks of this node; nothing where `all` does as well
    int number = 0;
  };
  int channels() const { return static_cast<int>(lanes_.size()) - 1; }
  const Lane& lane(int channel) const { return lanes_[static_cast<std::size_t>(channel)]; }
  const Lane& collectives() const { return lanes_.back(); }

  /// The rank of `peer` in Lane::inside, or -1 where Lane::all leads to it.
  int rank_inside(int peer) const {
    return has_inside_ && topology_.same_node(rank_, peer) ? topology_.local_rank(peer) : -1;
  }

  /// Lets `call` enqueue an exchange or a collective on the lane, behind what `queue` holds; `inside`: on
  /// both of its paths, which do not wait for each other. `pending` is what it waits for. The event is behind
  /// it.
  template <class Call>
  EventPool::Taken launch(const Queue& queue, const Lane& lane, bool inside, std::vector<Pending> pending,
                          const Call& call) {
    poll();
    const EventPool::Taken begun = events_.take(), done = events_.take();
    begun->record(queue);
    begun->block(lane.all.stream);
    if (inside) begun->block(lane.inside.stream);
    {
      // The first message between two ranks connects them, for which NCCL lets the host wait.
      const Watch::Waiting waiting(watch_, [&] { return pending; });
      call();
    }
    if (inside) {
      const EventPool::Taken joined = events_.take();
      joined->record(lane.inside.stream);
      joined->block(lane.all.stream);
    }
    done->record(lane.all.stream);
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
  /// Every communicator and stream, those of collectives last.
  std::vector<Path*> paths();
  void track(const Lane& lane, const EventPool::Taken& begun, const EventPool::Taken& done,
             std::vector<Pending> pending);
  /// What NCCL has met since it was asked last; nothing as a rule. Any thread may ask.
  std::string errors() const;

  int rank_ = 0, device_ = 0;
  Topology topology_;
  bool has_inside_ = false;
  Watch* watch_;
  std::string ways_;
  std::vector<Lane> lanes_;
  EventPool events_;
  Flights flights_;
  mutable std::mutex mutex_;  ///< of the communicators against abort()
  std::atomic<bool> aborted_ = false;
};

}  // namespace annulus::comm
