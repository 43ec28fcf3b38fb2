#pragma once

#include "base/kokkos/gpu_runtime.hpp"
#ifdef KOKKOS_ENABLE_HIP
#include <rccl/rccl.h>
#else
#include <nccl.h>
#endif

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <annulus/attention/comm/transport.hpp>

#include "attention/comm/in_flight_exchanges.hpp"
#include "attention/comm/nccl/exchange_timer.hpp"
#include "attention/comm/nccl/peer_copies.hpp"
#include "attention/comm/watchdog.hpp"
#include "base/kokkos/execution/event.hpp"

namespace annulus::comm {

/// Throws Error with the call and what NCCL says unless all went well.
void nccl_check(ncclResult_t code, const char* call, ncclComm_t communicator = nullptr);
#define ANNULUS_NCCL_CALL(function, ...) ::annulus::comm::nccl_check(function(__VA_ARGS__), #function)

/// The NCCL communicators of a rank, for each channel and for collectives, each with its stream. Shared by
/// the Communicator and the requests under way. The rank's Watchdog looks at what is under way on them.
///
/// Messages inside of a node are those of PeerCopies where GPUs can write into each other's memory.
/// Elsewhere, with several nodes, they have NCCL communicators of their own: NCCL gives all peers of a
/// communicator as many of its channels as the slowest of them can use, so that one peer behind a NIC would
/// leave NVLink a fraction of its rate.
class NcclLink {
 public:
  /// Collective over `control`.
  NcclLink(Communicator& control, const NcclOptions& options);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// An NCCL communicator and the stream of its kernels.
  struct CommStream {
    ncclComm_t communicator = nullptr;
    GpuStream stream = nullptr;
    std::optional<Queue> queue = {};  ///< the stream, where kernels go between messages: several nodes
  };
  /// One of NcclOptions::channels, or that of collectives; not one of the channels inside NCCL.
  struct NcclChannel {
    CommStream world;       ///< to every rank
    CommStream intra_node;  ///< to the ranks of this node; null where `world` does as well
    int index = 0;
  };
  int channels() const { return static_cast<int>(channels_.size()) - 1; }
  const NcclChannel& channel(int index) const { return channels_[static_cast<std::size_t>(index)]; }
  const NcclChannel& collectives() const { return channels_.back(); }

  /// What carries messages inside of a node in place of NCCL; null where NCCL does.
  PeerCopies* copies() const { return copies_.get(); }

  /// NCCL communicators that an exchange may use at once.
  int communicators_of_exchange() const {
    const bool world = copies_ == nullptr || topology_.nodes() > 1;
    return (world ? 1 : 0) + (has_intra_node_ ? 1 : 0);
  }

  /// The rank of `peer` in NcclChannel::intra_node, or -1 where another way leads to it.
  int intra_node_rank(int peer) const {
    return has_intra_node_ && topology_.same_node(rank_, peer) ? topology_.local_rank(peer) : -1;
  }
  /// The rank of `peer` in NcclChannel::world, or -1 where another way leads to it.
  int world_channel_rank(int peer) const {
    const bool copied = copies_ != nullptr && copies_->reaches(peer);
    return copied || intra_node_rank(peer) >= 0 ? -1 : peer;
  }

  /// Lets `call(begun)` enqueue an exchange or a collective on the channel, after what `queue` holds, which
  /// is done with the event `begun`; with `intra_node` on both of its streams, which do not wait for each
  /// other. `pending` is what it waits for. Returns the event that follows it.
  template <class Call>
  EventPool::Taken launch(const Queue& queue, const NcclChannel& channel, bool intra_node,
                          std::vector<Pending> pending, const Call& call) {
    poll();
    const EventPool::Taken begun = events_.take(), done = events_.take();
    begun->record(queue);
    begun->block(channel.world.stream);
    if (intra_node) begun->block(channel.intra_node.stream);
    if (timer_) timer_->begin(channel.world.stream, pending);
    {
      // The first message between two ranks connects them, for which NCCL lets the host wait.
      const Watchdog::Waiting waiting(watchdog_, [&] { return pending; });
      call(*begun);
    }
    if (intra_node) follow(channel.world, channel.intra_node);
    if (timer_) timer_->end(channel.world.stream);
    done->record(channel.world.stream);
    track(channel, begun, done, std::move(pending));
    return done;
  }

  /// What `later` does from now on waits for what `earlier` holds.
  void follow(const CommStream& later, const CommStream& earlier) { behind(earlier)->block(later.stream); }

  /// An event behind what the stream holds.
  EventPool::Taken behind(const CommStream& comm_stream) {
    const EventPool::Taken event = events_.take();
    event->record(comm_stream.stream);
    return event;
  }

  /// Throws what NCCL met since it was asked last, and after abort().
  void poll() const;

  /// Ends the kernels of all exchanges under way, wherever they wait. Nothing can be posted any more.
  void abort() noexcept;

  /// How NCCL gets to the other ranks: "NVLink to 3 ranks, network to 4 ranks".
  const std::string& path_summary() const { return path_summary_; }

 private:
  void connect(Communicator& control, const NcclOptions& options);
  /// Every communicator and stream, those of collectives last.
  std::vector<CommStream*> comm_streams();
  void track(const NcclChannel& channel, const EventPool::Taken& begun, const EventPool::Taken& done,
             std::vector<Pending> pending);
  /// What NCCL has met since it was asked last; nothing as a rule. Any thread may ask.
  std::string errors() const;

  int rank_ = 0, device_ = 0;
  Topology topology_;
  bool has_intra_node_ = false;
  Watchdog* watchdog_;
  std::string path_summary_;
  std::unique_ptr<PeerCopies> copies_;
  std::vector<NcclChannel> channels_;
  EventPool events_;
  InFlightExchanges in_flight_;
  std::optional<ExchangeTimer> timer_;  ///< where there is a Watchdog
  mutable std::mutex mutex_;            ///< of the communicators against abort()
  std::atomic<bool> aborted_ = false;
};

}  // namespace annulus::comm
