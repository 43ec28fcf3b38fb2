#pragma once

#include <functional>

#include <annulus/comm/communicator.hpp>
#include <annulus/sharding/partition.hpp>
#include <annulus/train/flat_buffer.hpp>

namespace annulus::train {

/// Rank 0 reads and writes whole buffers of which every rank holds a shard: it asks the owners for the
/// elements that it reads, hands out those that it writes, and never holds more than it is asked for.
class ShardService {
 public:
  /// `shards`: this rank's (Partition::shard_size). `channel`: of `ranks`, used by nothing else; messages are
  /// in memory of the host. All arguments outlive this.
  ShardService(comm::Communicator& ranks, const sharding::Partition& partition, const Buffers& shards,
               int channel);

  /// Calls `work` on rank 0. The other ranks serve it and return when `work` is done or has thrown; what it
  /// throws is thrown on rank 0. Collective.
  void run(const std::function<void(const Buffers&)>& work) const;

 private:
  class Whole;
  struct Order;

  const FlatBuffer& shard(int buffer) const;
  /// On ranks other than 0.
  void serve() const;

  comm::Communicator& ranks_;
  const sharding::Partition& partition_;
  const Buffers& shards_;
  int channel_;
};

}  // namespace annulus::train
