#pragma once

#include <memory>
#include <utility>

#include <annulus/attention/comm/communicator.hpp>

#include "attention/comm/reductions/stages.hpp"
#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/gpu_runtime.hpp"

namespace annulus::comm {

/// Messages between the GPUs of a node, carried by their copy engines, which take no SM. NCCL's kernels take
/// some, start late where another kernel fills the GPU, and slow down kernels that fence often
/// (docs/benchmarks/fixed-order.md, "The fixed order inside a ring").
///
/// A sender copies a message piece by piece into a window in the receiver's memory; the receiver copies
/// the pieces to where they belong. Each side counts the pieces in the memory of the other: `arrived` at the
/// receiver, `taken` at the sender. Streams wait for these counters, the host does not. The messages
/// of a sender to a receiver on a channel have two streams of their own, one on each side, so a message waits
/// for none but those before it between the same two ranks.
///
/// The host waits once for each pair of ranks and channel: the receiver makes the window when it posts the
/// first message, and the sender asks for it.
///
/// Only CUDA has streams that wait for such counters (no_peer_copies.cpp says why).
class PeerCopies {
 public:
  /// Makes copies between the GPUs of a node; null on every rank unless each rank of each node can write into
  /// the memory of the others there. Collective over `control`, which has to live as long as the result.
  static std::unique_ptr<PeerCopies> make(Communicator& control, int channels);
  virtual ~PeerCopies() = default;
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// `peer` is another rank of this node.
  bool reaches(int peer) const { return peer != rank_ && topology_.same_node(rank_, peer); }

  /// Enqueues those of the messages whose peer is reached. They begin after `begin`; `stream` continues when
  /// they are complete.
  virtual void post(int channel, const CollectiveStage& stage, const Event& begin, GpuStream stream) = 0;

  /// Gives the memory back when no rank uses it any more. Collective. Throws Error when the device has
  /// failed.
  virtual void finish() = 0;

  /// Ends the waits of all streams of this rank. Messages that are under way may then arrive with wrong
  /// contents, at other ranks, too: the job has to end.
  virtual void abort() noexcept = 0;

 protected:
  PeerCopies(int rank, Topology topology) : rank_(rank), topology_(std::move(topology)) {}

  int rank_;
  Topology topology_;
};

}  // namespace annulus::comm
