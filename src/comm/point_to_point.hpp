#pragma once

#include <annulus/comm/communicator.hpp>
#include <annulus/core/memory.hpp>
#include <functional>

namespace annulus::comm {

/// "channel 3", or "a collective", for error messages.
std::string channel_name(int channel);

/// Collectives in terms of messages: what loopback and null are made of, and the reductions of MPI, so that a
/// reduction gives the same bits on every rank, on every transport and at every size. The standard asks of
/// MPI_Allreduce neither: its result may depend on the algorithm that the library picks, and may differ
/// between ranks.
///
/// Reductions: each rank owns one block of a piece of the data, receives that block from all others, combines
/// the contributions in rank order and sends the result back. Every rank moves 2·bytes·(P − 1)/P each way,
/// and holds at most `workspace_bytes` of others' data.
class PointToPointCommunicator : public Communicator {
 public:
  Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                   int channel) final;
  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override;
  void all_reduce(const Queue& queue, void* data, std::size_t count, DType type, ReduceOp op) final;
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override;
  void reduce_scatter(const Queue& queue, const void* send, void* receive, std::size_t count, DType type,
                      ReduceOp op) final;
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override;
  void barrier() override;

 protected:
  /// The channel of the collectives, apart from those of callers.
  static constexpr int collective_channel = -1;
  static constexpr std::size_t workspace_bytes = std::size_t{8} << 20;

  /// Posts messages between valid ranks, on a channel of the caller or the collectives' one. The queue has
  /// been fenced.
  virtual Request post(std::span<const Send> sends, std::span<const Receive> receives, int channel) = 0;

  /// Throws Error unless the host reads the queue's memory; then fences it.
  void ready(const Queue& queue, const char* operation) const;

 private:
  /// A range of elements.
  struct Block {
    std::size_t first = 0, count = 0;
  };
  /// Some rounds of "block r of everybody's data goes to rank r and is combined there".
  struct Rounds {
    std::size_t rounds = 0;
    std::size_t largest_block = 0;                            ///< elements
    std::function<Block(std::size_t round, int rank)> block;  ///< of `data`
    std::function<void*(std::size_t round)> result;           ///< where this rank's combined block goes
    std::function<void(std::size_t round)> done;              ///< called after each round
  };
  void reduce_rounds(const std::byte* data, DType type, ReduceOp op, const Rounds& rounds);
  void all_reduce_small(const Queue& queue, std::byte* data, std::size_t count, DType type, ReduceOp op);
  std::byte* workspace(std::size_t bytes);

  std::unique_ptr<std::byte[]> workspace_;
  std::size_t workspace_size_ = 0;
  annulus::detail::MemoryCharge workspace_charge_;
};

}  // namespace annulus::comm
