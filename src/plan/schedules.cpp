#include <annulus/plan/schedules.hpp>

#include <fmt/ranges.h>

#include <charconv>
#include <optional>
#include <system_error>

#include <annulus/base/error.hpp>

namespace annulus::plan {
namespace {

/// A name, and what stands behind it on the command line: "name:argument".
struct Request {
  std::string_view name;
  std::optional<std::string_view> argument;
  std::string_view field;  // that it was given in
};

/// The argument as a positive number; nothing when there is none.
std::optional<int> number(const Request& request) {
  if (!request.argument) return std::nullopt;
  int value = 0;
  const char* const end = request.argument->data() + request.argument->size();
  const auto [rest, error] = std::from_chars(request.argument->data(), end, value);
  require(error == std::errc() && rest == end && value >= 1,
          "{}: '{}:{}': '{}' is no positive number of ranks", request.field, request.name, *request.argument,
          *request.argument);
  return value;
}

using Maker = Plan (*)(const Problem&, Pass, const Request&);

/// A schedule without argument.
template <Plan (*make)(const Problem&, Pass)>
Plan plain(const Problem& problem, Pass pass, const Request& request) {
  require(!request.argument, "{}: schedule '{}' takes no argument, but has ':{}'", request.field,
          request.name, request.argument.value_or(""));
  return make(problem, pass);
}

Plan double_ring(const Problem& problem, Pass pass, const Request& request) {
  return make_double_ring(problem, pass, number(request));
}

struct Schedule {
  std::string_view name;
  Maker make;
};
constexpr Schedule schedules[] = {{"ring", plain<make_ring>},
                                  {"burst", plain<make_burst>},
                                  {"topology-burst", plain<make_topology_burst>},
                                  {"double-ring", double_ring},
                                  {"hierarchical", plain<make_hierarchical>},
                                  {"all-gather", plain<make_all_gather>}};

Request parse(std::string_view name, std::string_view field) {
  const std::size_t colon = name.find(':');
  Request request{name.substr(0, colon), std::nullopt, field};
  if (colon != std::string_view::npos) request.argument = name.substr(colon + 1);
  return request;
}

const Schedule& find(const Request& request) {
  for (const Schedule& schedule : schedules) {
    if (schedule.name == request.name) return schedule;
  }
  fail("{}: there is no schedule '{}'; known are {}", request.field, request.name,
       fmt::join(schedule_names(), ", "));
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules) names.emplace_back(schedule.name);
  return names;
}

void check_schedule(std::string_view name, std::string_view field) {
  find(parse(name, field));
}

Plan make_plan(std::string_view name, const Problem& problem, Pass pass, std::string_view field) {
  const Request request = parse(name, field);
  return find(request).make(problem, pass, request);
}

}  // namespace annulus::plan
