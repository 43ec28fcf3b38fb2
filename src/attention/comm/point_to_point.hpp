#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <optional>
#include <vector>

#include "attention/comm/reductions/stages.hpp"
#include "base/kokkos/memory/workspace.hpp"

namespace annulus::comm {

/// "channel 3", or "a collective", for error messages.
std::string channel_name(int channel);

/// Bytes of MemoryCategory::communication, of the host or of a device, that an all_reduce in rank order of
/// `count` elements takes, and that its communicator keeps from then on.
std::size_t all_reduce_space(const Topology& topology, bool on_host, std::size_t count, std::size_t element);

/// Collectives in terms of messages: what loopback and null are made of, and the reductions of MPI, so that a
/// reduction gives the same bits on every rank, on every transport and at every size. The standard asks of
/// MPI_Allreduce neither: its result may depend on the algorithm that the library picks, and may differ
/// between ranks.
///
/// Reductions: each rank owns one block of a chunk of the data, gets what all others contribute to it,
/// combines that in rank order and sends the result back. Every rank moves 2·bytes·(P − 1)/P each way, and
/// holds at most workspace_bytes(queue) of others' data. Gathers and reductions go in the stages of
/// routes.hpp.
///
/// Memory of devices takes the same way where `post` carries it (NCCL, an MPI that reads it): waits, sums and
/// copies are work of the queue then, and nothing here lets the host wait.
class PointToPointCommunicator : public Communicator {
 public:
  Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                   int channel) override;
  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override;
  using Communicator::all_reduce;
  void all_reduce(const Queue& queue, void* data, const Reduction& elements) override;
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override;
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override;
  void barrier() override;
  Request start_all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes,
                           int channel) override;
  Request start_reduce_scatter(const Queue& queue, const void* send, void* receive, const Reduction& blocks,
                               int channel) override;
  void progress() override { advance_stages(); }

 protected:
  /// The channel of the collectives, apart from those of callers. Channels below it are those of stages:
  /// ranks may be in different ones of several collectives at the same time, so each stage has one to itself.
  static constexpr int collective_channel = -1;
  static constexpr int lowest_channel = -4097;

  /// Posts messages between valid ranks, on a channel of the caller or the collectives' one. ready() has been
  /// called for the work that the queue held by then.
  virtual Request post(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                       int channel) = 0;

  /// Posts stages one after the other, for a caller's channel or the collectives' one. ready() has been
  /// called for what this rank sends of its own. This one lets the host post them (reductions/stages.hpp).
  virtual Request post_stages(const Queue& queue, std::vector<CollectiveStage> stages, int channel);

  /// What stages after the first are posted with, and do the work before their messages on. This one does not
  /// wait for what `queue` holds.
  virtual Queue queue_of_later_stages(const Queue& queue);

  /// Makes memory on which the queue works ready to be posted. Throws Error where the communicator does not
  /// carry it. This one takes what the host reads, and fences.
  virtual void ready(const Queue& queue, const char* operation) const;

  /// Throws Error unless `root` is a rank.
  void check_root(int root) const;
  /// Throws Error unless `channel` is one of a caller's.
  virtual void check_channel(int channel, const char* operation) const;

 private:
  /// Everybody's block of everybody's data, (size(), bytes) at `receive` but for this rank's own.
  Request post_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes, int channel);
  void all_reduce_small(const Queue& queue, std::byte* data, std::size_t count, DType type, ReduceOp op);

  int collectives_ = 0;  ///< started so far, modulo as many as have channels
  std::optional<Queue> queue_of_later_stages_;
  Workspace workspace_{MemoryCategory::communication, "annulus::comm::workspace"};
};

}  // namespace annulus::comm
