#include <annulus/attention/plan/schedules.hpp>

#include <fmt/format.h>

#include <string>

#include <annulus/base/error.hpp>

#include "attention/plan/builders/circulation.hpp"
#include "attention/plan/builders/head_exchange.hpp"
#include "attention/plan/builders/parts.hpp"

namespace annulus::plan {
namespace {

/// The problem with Ulysses groups in the place of ranks.
Problem of_groups(const Problem& problem, const Grid& grid) {
  Problem groups = problem;
  const int ring_degree = grid.ring_degree(problem.ranks());
  groups.topology = Topology::uniform(ring_degree, ring_degree);
  groups.grid = {};
  if (ring_degree == 1) groups.layout = Layout();  // all rows, as every layout deals them to one
  return groups;
}

void check_heads(const std::string& schedule, const Problem& problem, int ranks_of_group) {
  if (problem.heads >= ranks_of_group) return;
  const int possible = largest_divisor(problem.ranks(), problem.heads);
  const std::string other =
      possible == 1 ? "ring or burst" : fmt::format("hybrid:{}x{}", possible, problem.ranks() / possible);
  fail(
      "schedule {}: {} query heads are too few for the {} ranks that exchange heads, each of which needs "
      "one: use schedule {}",
      schedule, problem.heads, ranks_of_group, other);
}

std::string text(const Grid& grid, int ranks) {
  const std::string sizes = fmt::format("hybrid:{}x{}", grid.ulysses_degree, grid.ring_degree(ranks));
  return grid.placement == GridPlacement::head_first ? sizes
                                                     : fmt::format("{}:{}", sizes, name_of(grid.placement));
}

/// Attention between groups: a ring, or an all-gather where the layout is `balanced`, whose ranks work
/// equally much altogether and not in each step of a ring. Of its heads each rank of a group has some, which
/// are not cut again.
Plan between_groups(const Problem& problem, const Grid& grid, Pass pass) {
  const Problem groups = of_groups(problem, grid);
  if (groups.layout.kind() == Layout::Kind::balanced) return make_all_gather(groups, pass);
  return circulate("ring", groups, pass, circulate_kv(pass),
                   {.inner_size = groups.ranks(), .cuts_heads = false});
}

}  // namespace

Plan make_ulysses(const Problem& problem, Pass pass) {
  problem.check();
  const Grid grid{problem.ranks(), GridPlacement::head_first};
  check_heads("ulysses", problem, grid.ulysses_degree);
  return exchange_heads("ulysses", problem, grid, between_groups(problem, grid, pass));
}

Plan make_hybrid(const Problem& problem, Pass pass) {
  problem.check();
  const std::string schedule = text(problem.grid, problem.ranks());
  check_heads(schedule, problem, problem.grid.ulysses_degree);
  return exchange_heads(schedule, problem, problem.grid, between_groups(problem, problem.grid, pass));
}

}  // namespace annulus::plan
