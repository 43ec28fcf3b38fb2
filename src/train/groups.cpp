#include "train/groups.hpp"

#include <annulus/base/error.hpp>

namespace annulus::train {

Groups Groups::make(comm::Communicator& world, const Config::Parallel& parallel) {
  const int context = parallel.context == 0 ? world.size() : parallel.context;
  require(parallel.zero == 0 || world.size() > 1,
          "parallel.zero = {} shards over the ranks of the run, which has one: start more ranks (mpirun -n 2 "
          "annulus-train …), or set parallel.zero = 0",
          parallel.zero);
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

}  // namespace annulus::train
