#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "attention/comm/point_to_point.hpp"

namespace annulus::comm {

/// Small collectives of a thread that prepares things in the background, beside the rank's own thread. A wait
/// sleeps between looks, so that it takes no core, runs no kernel, does not show in the watchdog, and ends
/// when give_up() is called: the other ranks may never come.
class BackgroundCommunicator final : public PointToPointCommunicator {
 public:
  /// `twin` is Communicator::for_another_thread of the ranks'.
  explicit BackgroundCommunicator(std::unique_ptr<Communicator> twin);

  int rank() const override { return twin_->rank(); }
  /// Ranks without nodes: collectives go in one stage.
  const Topology& topology() const override { return topology_; }
  std::string description() const override { return twin_->description() + ", in the background"; }
  int world_rank(int rank) const override { return twin_->world_rank(rank); }
  using Communicator::all_reduce;
  /// Reduces elements of i32 and i64; throws Error for others.
  void all_reduce(const Queue& queue, void* data, const Reduction& elements) override;
  /// Throws Error: groups are split where the ranks' own threads are.
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(const std::string& message) override { twin_->abort(message); }

  /// Makes every wait throw Error from now on, also one that is under way. Any thread may call it.
  void give_up() noexcept { given_up_ = true; }

 protected:
  Request post(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
               int channel) override;
  /// Memory of the host on which no queue works.
  void ready(const Queue&, const char*) const override {}

 private:
  std::unique_ptr<Communicator> twin_;
  Topology topology_;
  std::atomic<bool> given_up_ = false;
};

}  // namespace annulus::comm
