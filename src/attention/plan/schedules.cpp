#include <annulus/attention/plan/schedules.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include <annulus/base/error.hpp>

#include "attention/plan/builders/parts.hpp"
#include "base/nearest.hpp"
#include "base/parse_number.hpp"

namespace annulus::plan {
namespace {

/// A name, and what stands behind it on the command line: "name:argument".
struct ScheduleRequest {
  std::string_view name;
  std::optional<std::string_view> argument;
  std::string_view field;  // that it was given in
};

/// A text that is a positive number and nothing else.
std::optional<int> positive_number(std::string_view text) {
  const auto value = parse_number<int>(text);
  return value.value_or(0) < 1 ? std::nullopt : value;
}

using Maker = Plan (*)(const Problem&, Pass, const ScheduleRequest&);

/// A schedule without argument.
template <Plan (*make)(const Problem&, Pass)>
Plan plain(const Problem& problem, Pass pass, const ScheduleRequest& request) {
  require(!request.argument, "{}: schedule '{}' takes no argument, but has ':{}'", request.field,
          request.name, request.argument.value_or(""));
  return make(problem, pass);
}

Plan double_ring(const Problem& problem, Pass pass, const ScheduleRequest& request) {
  if (!request.argument) return make_double_ring(problem, pass);
  const std::optional<int> window = positive_number(*request.argument);
  require(window.has_value(), "{}: '{}:{}': '{}' is no positive number of ranks", request.field, request.name,
          *request.argument, *request.argument);
  return make_double_ring(problem, pass, window);
}

/// A grid as "HxC", "HxC:head-first" or "HxC:context-first".
Grid parse_grid(const ScheduleRequest& request, const Problem& problem) {
  const std::string_view text = request.argument.value_or("");
  const std::string_view sizes = text.substr(0, text.find(':'));
  const std::size_t times = sizes.find('x');
  const std::optional<int> heads = positive_number(sizes.substr(0, times));
  const std::optional<int> contexts =
      times == std::string_view::npos ? std::nullopt : positive_number(sizes.substr(times + 1));
  require(heads && contexts,
          "{}: '{}:{}': write hybrid:HxC, H ranks that exchange heads "
          "in each of C Ulysses groups, such as hybrid:2x4",
          request.field, request.name, text);
  Grid grid{*heads, GridPlacement::head_first};
  const std::string_view ending = text.substr(sizes.size());  // empty, or a colon and the placement
  if (!ending.empty()) {
    const std::string_view placement = ending.substr(1);
    if (placement == name_of(GridPlacement::context_first)) grid.placement = GridPlacement::context_first;
    require(placement == name_of(grid.placement),
            "{}: '{}:{}': there is no placement '{}'; use head-first or context-first", request.field,
            request.name, text, placement);
  }
  const int ranks = problem.ranks(), possible = largest_divisor(ranks, std::min(*heads, problem.heads));
  const std::int64_t wanted = std::int64_t{*heads} * *contexts;
  require(wanted == ranks, "{}: '{}:{}' is for {} ranks, but there are {}: use schedule hybrid:{}x{}{}",
          request.field, request.name, text, wanted, ranks, possible, ranks / possible, ending);
  return grid;
}

/// The plan of a problem that has the grid.
Plan hybrid(const Problem& problem, Pass pass, const ScheduleRequest&) {
  return make_hybrid(problem, pass);
}

struct Schedule {
  std::string_view name;
  Maker make;
  std::string_view form = name;  // with the argument that it must have
};
constexpr Schedule schedules[] = {{"ring", plain<make_ring>},
                                  {"burst", plain<make_burst>},
                                  {"topology-burst", plain<make_topology_burst>},
                                  {"double-ring", double_ring},
                                  {"hierarchical", plain<make_hierarchical>},
                                  {"all-gather", plain<make_all_gather>},
                                  {"helper-worker", plain<make_helper_worker>},
                                  {"ulysses", plain<make_ulysses>},
                                  {"hybrid", hybrid, "hybrid:HxC"}};

ScheduleRequest parse(std::string_view name, std::string_view field) {
  const std::size_t colon = name.find(':');
  ScheduleRequest request{name.substr(0, colon), std::nullopt, field};
  if (colon != std::string_view::npos) request.argument = name.substr(colon + 1);
  return request;
}

const Schedule& find(const ScheduleRequest& request) {
  for (const Schedule& schedule : schedules) {
    if (schedule.name == request.name) return schedule;
  }
  std::vector<std::string_view> names;
  for (const Schedule& schedule : schedules) names.push_back(schedule.name);
  fail("{}: there is no schedule '{}'; {}known are {}", request.field, request.name,
       did_you_mean(request.name, names), fmt::join(schedule_names(), ", "));
}

/// Ulysses groups of each node; 0 where these are not whole, or nodes differ.
int groups_per_node(const Problem& problem) {
  const int degree = problem.grid.ulysses_degree, ranks = problem.topology.ranks_on(0);
  const bool whole = problem.grid.placement == GridPlacement::head_first && ranks % degree == 0;
  return problem.topology.is_uniform() && (degree == 1 || whole) ? ranks / degree : 0;
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules) names.emplace_back(schedule.form);
  return names;
}

void check_schedule(std::string_view name, std::string_view field) {
  find(parse(name, field));
}

Problem arranged_for(std::string_view name, Problem problem, std::string_view field) {
  const MaskedLayers layers{problem.mask};
  return arranged_for(name, std::move(problem), {&layers, 1}, field);
}

Problem arranged_for(std::string_view name, Problem problem, std::span<const MaskedLayers> layers,
                     std::string_view field) {
  const ScheduleRequest request = parse(name, field);
  if (find(request).make == hybrid) problem.grid = parse_grid(request, problem);
  problem.layout =
      problem.layout.for_layers(layers, problem.grid.ring_degree(problem.ranks()), groups_per_node(problem));
  return problem;
}

Plan make_plan(std::string_view name, const Problem& problem, Pass pass, std::string_view field) {
  const ScheduleRequest request = parse(name, field);
  return find(request).make(arranged_for(name, problem, field), pass, request);
}

}  // namespace annulus::plan
