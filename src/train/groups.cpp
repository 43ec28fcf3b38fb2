#include "train/groups.hpp"

#include <annulus/base/error.hpp>

namespace annulus::train {

Groups Groups::make(comm::Communicator& world, int context) {
  if (context == 0) context = world.size();
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
