#include "common/output/cluster_json.hpp"

#include <annulus/base/dtype.hpp>

namespace annulus::app {

using nlohmann::json;

json to_json(const simulator::Cluster& cluster) {
  const auto link = [](const simulator::Link& l) {
    return json{{"bandwidth", l.bandwidth}, {"latency", l.latency}};
  };
  json kernels = json::array();
  for (const simulator::KernelRate& k : cluster.kernels) {
    kernels.push_back({{"pass", name_of(k.pass)},
                       {"dtype", k.dtype ? json(name_of(*k.dtype)) : json()},
                       {"head_dim", k.head_dim},
                       {"rows", k.rows},
                       {"mask", k.mask ? json(name_of(*k.mask)) : json()},
                       {"rate", k.rate}});
  }
  return {{"intra_node", link(cluster.intra_node)},
          {"inter_node", link(cluster.inter_node)},
          {"nics_per_node", cluster.nics_per_node},
          {"rank_bandwidth", cluster.rank_bandwidth},
          {"kernel", kernels}};
}

json to_json(const plan::Problem& problem) {
  return {{"ranks", problem.ranks()},        {"tokens", problem.mask.tokens()}, {"heads", problem.heads},
          {"kv_heads", problem.kv_heads},    {"head_dim", problem.head_dim},    {"batch", problem.batch},
          {"dtype", name_of(problem.dtype)}, {"mask", problem.mask.to_string()}};
}

}  // namespace annulus::app
