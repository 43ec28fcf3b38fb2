#include "common/topology.hpp"

#include <algorithm>

#include <annulus/base/error.hpp>

namespace annulus::app {

Topology topology_of(int ranks, int ranks_per_node, const std::optional<Topology>& file,
                     const std::filesystem::path& origin) {
  constexpr int default_ranks = 8;
  require(ranks >= 0, "--ranks is {}: it must be positive, or 0 for those of the cluster file", ranks);
  require(ranks_per_node >= 0,
          "--ranks-per-node is {}: it must be positive, or 0 for those of the cluster file", ranks_per_node);
  if (ranks == 0) ranks = file ? file->ranks() : default_ranks;
  if (ranks_per_node > 0) return Topology::uniform(ranks, ranks_per_node);
  if (file && file->ranks() == ranks) return *file;
  require(
      !file || file->is_uniform(),
      "--ranks {} is not the number of ranks of {}, whose nodes differ in size ({}): say --ranks-per-node",
      ranks, origin.string(), file ? file->to_string() : "");
  return Topology::uniform(ranks, file ? file->ranks_on(0) : std::min(ranks, default_ranks));
}

}  // namespace annulus::app
