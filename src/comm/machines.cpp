#include "comm/machines.hpp"

#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::comm {

Topology topology_of_machines(std::span<const int> lowest_rank) {
  std::vector<int> ranks_on_node;
  for (std::size_t rank = 0; rank < lowest_rank.size(); ++rank) {
    const int lowest = lowest_rank[rank];
    if (lowest == static_cast<int>(rank)) {
      ranks_on_node.push_back(1);
      continue;
    }
    require(lowest_rank[rank - 1] == lowest,
            "ranks {} and {} are on one machine, rank {} between them is not: start consecutive ranks on one "
            "machine "
            "(mpirun --map-by slot, srun --distribution=block), or give the number of ranks per node",
            lowest, rank, rank - 1);
    ++ranks_on_node.back();
  }
  return Topology(std::move(ranks_on_node));
}

}  // namespace annulus::comm
