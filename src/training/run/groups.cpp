#include "training/run/groups.hpp"

#include <annulus/base/error.hpp>

namespace annulus::training {

int context_ranks(const Config::Parallel& parallel, int ranks) {
  const int context = parallel.context == 0 ? ranks : parallel.context;
  require(parallel.zero == 0 || ranks > 1,
          "parallel.zero = {} shards over the ranks of the run, which has one: take more ranks (mpirun -n 2 "
          "annulus-train …, or --ranks of a plan), or set parallel.zero = 0",
          parallel.zero);
  static constexpr const char* indivisible =
      "{} = {} does not divide the {} ranks of this run: take a multiple of {} ranks, or change it";
  require(parallel.shard == 0 || ranks % parallel.shard == 0, indivisible, "parallel.shard", parallel.shard,
          ranks, parallel.shard);
  require(ranks % context == 0, indivisible, "parallel.context", context, ranks, context);
  return context;
}

std::unique_ptr<comm::Communicator> context_group(comm::Communicator& world,
                                                  const Config::Parallel& parallel) {
  return world.split(world.rank() / context_ranks(parallel, world.size()), world.rank());
}

ShardGroups::ShardGroups(comm::Communicator& world, int shard) : world(world) {
  if (shard == world.size()) return;
  own_ = world.split(world.rank() / shard, world.rank());
  replicas = world.split(world.rank() % shard, world.rank());
}

}  // namespace annulus::training
