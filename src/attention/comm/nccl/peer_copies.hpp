#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "attention/comm/reductions/stages.hpp"
#include "base/kokkos/execution/event.hpp"

namespace annulus::comm {

/// Messages between the GPUs of a node, carried by their copy engines, which take no SM. NCCL's kernels take
/// some, start late where another kernel fills the GPU, and slow down kernels that fence often
/// (docs/benchmarks/gpu-hopper-attention.md, "The fixed order inside a ring").
///
/// A sender copies a message piece by piece into a window in the receiver's memory; the receiver copies
/// the pieces to where they belong. Each side counts the pieces in the memory of the other: `arrived` at the
/// receiver, `taken` at the sender. Streams wait for these counters, the host does not. The messages
/// of a sender to a receiver on a channel have two streams of their own, one on each side, so a message waits
/// for none but those before it between the same two ranks.
///
/// The host waits once for each pair of ranks and channel: the receiver makes the window when it posts the
/// first message, and the sender asks for it.
class PeerCopies {
 public:
  /// Null on every rank unless each rank of each node can write into the memory of the others there.
  /// Collective over `control`, which has to live as long as the result.
  static std::unique_ptr<PeerCopies> make(Communicator& control, int channels);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// `peer` is another rank of this node.
  bool reaches(int peer) const { return peer != rank_ && topology_.same_node(rank_, peer); }

  /// Enqueues those of the messages whose peer is reached. They begin after `begin`; `stream` continues when
  /// they are complete.
  void post(int channel, const CollectiveStage& stage, const Event& begin, cudaStream_t stream);

  /// Gives the memory back when no rank uses it any more. Collective. Throws Error when the device has
  /// failed.
  void finish();

  /// Ends the waits of all streams of this rank. Messages that are under way may then arrive with wrong
  /// contents, at other ranks, too: the job has to end.
  void abort() noexcept;

 private:
  /// One direction between this rank and a peer, on a channel.
  struct Lane {
    cudaStream_t stream = nullptr;
    std::byte* window = nullptr;         ///< in the receiver's memory
    std::uint32_t* waits_for = nullptr;  ///< the counter that the peer advances
    std::uint32_t* counts = nullptr;     ///< the counter that this side advances, in the peer's memory
    std::uint32_t pieces = 0;            ///< enqueued so far; wraps
  };
  /// What is left of a message to enqueue.
  struct Remaining {
    Lane* lane;
    const std::byte* source;  ///< null: a message to receive
    std::byte* target;        ///< null: a message to send
    std::size_t bytes;
  };
  /// A window on its way to the sender.
  struct Offer {
    cudaIpcMemHandle_t handle{};
    Request request;
  };
  enum class Counter : std::uint8_t { arrived, taken };
  using LaneKey = std::pair<int, int>;  ///< channel, peer

  PeerCopies(Communicator& control, int channels);

  /// Whether this rank could open the counters of all peers.
  bool open(const std::vector<cudaIpcMemHandle_t>& counters_of_ranks);
  Lane& incoming(int channel, int peer);
  Lane& outgoing(int channel, int peer);
  Lane& make_lane(std::map<LaneKey, Lane>& lanes, LaneKey key) const;
  void enqueue_piece(Remaining& message) const;
  /// In the counters of any rank of this node: what `peer` advances, or this rank at the peer's.
  std::size_t counter_index(int channel, int peer, Counter counter) const;

  Communicator& control_;
  int rank_;
  int channels_;
  Topology topology_;
  std::uint32_t* counters_ = nullptr;                ///< of this rank (channel, local rank, 2)
  std::map<int, std::uint32_t*> counters_of_peers_;  ///< [rank]
  std::map<LaneKey, Lane> incoming_, outgoing_;
  std::list<Offer> offers_;
  EventPool events_;
  std::mutex mutex_;  ///< of the lanes against abort()
};

}  // namespace annulus::comm
