#pragma once

#include <memory>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// Ranks that share a sequence in a run on `ranks` ranks: parallel.context, or all. Throws Error naming the
/// key where the ranks cannot be divided, and where there is no second one to shard over (parallel.zero).
int context_ranks(const Config::Parallel& parallel, int ranks);

/// This rank's context-parallel group: so many consecutive ranks share a sequence, the groups read different
/// ones. Collective. Throws Error as context_ranks.
std::unique_ptr<comm::Communicator> context_group(comm::Communicator& world,
                                                  const Config::Parallel& parallel);

/// Over which ranks parallel.zero shards: groups of `shard` consecutive ranks hold one copy each.
struct ShardGroups {
  /// Collective; `world` outlives this.
  ShardGroups(comm::Communicator& world, int shard);

  /// This rank's group.
  comm::Communicator& ranks() const { return own_ ? *own_ : world; }
  int groups() const { return world.size() / ranks().size(); }
  int group() const { return world.rank() / ranks().size(); }

  comm::Communicator& world;
  std::unique_ptr<comm::Communicator>
      replicas;  ///< ranks with the same shard in all groups; null with one group

 private:
  std::unique_ptr<comm::Communicator> own_;  // where there are several groups
};

}  // namespace annulus::training
