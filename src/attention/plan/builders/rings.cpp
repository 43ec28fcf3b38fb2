#include <fmt/format.h>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>

#include "attention/plan/builders/circulation.hpp"
#include "attention/plan/builders/parts.hpp"

namespace annulus::plan {
namespace {

/// Ranks on every node.
int node_size(std::string_view schedule, const Topology& topology) {
  require(topology.is_uniform(),
          "schedule '{}': its rings between nodes need the same number of ranks on every node, but there are "
          "{}: use schedule ring or burst",
          schedule, topology.to_string());
  return topology.ranks_on(0);
}

}  // namespace

Plan make_ring(const Problem& problem, Pass pass) {
  return circulate("ring", problem, pass, circulate_kv(pass), {.inner_size = problem.ranks()});
}

Plan make_burst(const Problem& problem, Pass pass) {
  return circulate("burst", problem, pass, pass == Pass::forward ? circulate_kv(pass) : circulate_q(),
                   {.inner_size = problem.ranks()});
}

Plan make_topology_burst(const Problem& problem, Pass pass) {
  constexpr std::string_view name = "topology-burst";
  return circulate(std::string(name), problem, pass,
                   pass == Pass::forward ? circulate_kv(pass) : circulate_q(),
                   {.inner_size = node_size(name, problem.topology)});
}

Plan make_hierarchical(const Problem& problem, Pass pass) {
  constexpr std::string_view name = "hierarchical";
  return circulate(std::string(name), problem, pass, circulate_kv(pass),
                   {.inner_size = node_size(name, problem.topology)});
}

Plan make_double_ring(const Problem& problem, Pass pass, std::optional<int> window) {
  std::string name = "double-ring";
  if (window) {
    name += fmt::format(":{}", *window);
    require(*window >= 1 && problem.ranks() % *window == 0,
            "schedule '{}': windows of {} ranks do not divide {} ranks: use schedule double-ring:{}", name,
            *window, problem.ranks(), largest_divisor(problem.ranks(), *window));
  }
  const int size = window ? *window : node_size(name, problem.topology);
  return circulate(name, problem, pass, circulate_kv(pass), {.inner_size = size, .gradients_alone = true});
}

}  // namespace annulus::plan
