#include "train/groups.hpp"

#include <annulus/base/error.hpp>

namespace annulus::train {

Groups Groups::make(comm::Communicator& world, const Config::Parallel& parallel) {
  const int context = parallel.context == 0 ? world.size() : parallel.context;
  require(parallel.zero == 0 || world.size() > 1,
          "parallel.zero = {} shards over the ranks of the run, which has one: start more ranks (mpirun -n 2 "
          "annulus-train …), or set parallel.zero = 0",
          parallel.zero);
  require(
      parallel.shard == 0 || world.size() % parallel.shard == 0,
      "parallel.shard = {} does not divide the {} ranks of this run: start a multiple of {} ranks, or change "
      "parallel.shard (0: all ranks share one copy)",
      parallel.shard, world.size(), parallel.shard);
  require(world.size() % context == 0,
          "parallel.context = {} does not divide the {} ranks of this run: start a multiple of {} ranks, or "
          "change parallel.context",
          context, world.size(), context);
  Groups groups;
  groups.data_groups = world.size() / context;
  groups.data_group = world.rank() / context;
  groups.context = world.split(groups.data_group, world.rank());
  return groups;
}

ShardGroups::ShardGroups(comm::Communicator& world, int shard) : world(world) {
  if (shard == 0 || shard == world.size()) return;
  own_ = world.split(world.rank() / shard, world.rank());
  replicas = world.split(world.rank() % shard, world.rank());
}

}  // namespace annulus::train
