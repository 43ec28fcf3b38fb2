#include "options/checks.hpp"

#include <annulus/attention/plan/plan.hpp>
#include <annulus/base/error.hpp>

namespace annulus::options {

void require_positive(std::string_view option, std::int64_t value) {
  require(value >= 1, "{} is {}: it must be at least 1", option, value);
  require(value <= most_of_option, "{} is {}: give at most {}", option, value, most_of_option);
}

void check_matrix(std::string_view options, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;  // BLAS' int
  constexpr double most_elements = 0x1p40;
  require(rows >= 1 && rows <= most && columns >= 1 && columns <= most,
          "{} ask for an array of {} x {} elements: give numbers from 1 to {}", options, rows, columns, most);
  require(static_cast<double>(rows) * static_cast<double>(columns) <= most_elements,
          "{} ask for an array of {} x {} elements: at most 2^40 are possible, take fewer", options, rows,
          columns);
}

int checked_kv_heads(int heads, int kv_heads) {
  require_positive("--heads", heads);
  require(kv_heads >= 0, "--kv-heads is {}: it must be positive, or 0 for as many as --heads", kv_heads);
  require(kv_heads == 0 || heads % kv_heads == 0,
          "--heads {} is not divisible by --kv-heads {}: every kv head serves equally many query heads",
          heads, kv_heads);
  return kv_heads == 0 ? heads : kv_heads;
}

DType parse_storage(std::string_view name) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    if (name == name_of(type)) return type;
  fail("--dtype '{}': attention stores f32, bf16 or f16", name);
}

void check_ranks_per_node(int ranks_per_node, int ranks) {
  require(ranks_per_node >= 0 && ranks_per_node <= ranks,
          "--ranks-per-node is {}, but there are {} ranks: give a number between 1 and that, or 0 for what "
          "the machine says",
          ranks_per_node, ranks);
}

bool has_placement(std::string_view schedule) {
  return schedule.starts_with("hybrid:");
}

std::string with_placement(const std::string& schedule, std::string_view placement) {
  using plan::GridPlacement;
  constexpr GridPlacement all[] = {GridPlacement::head_first, GridPlacement::context_first};
  if (placement.empty()) return schedule;
  const bool known = placement == name_of(all[0]) || placement == name_of(all[1]);
  require(known, "--placement {}: there are {} and {}", placement, name_of(all[0]), name_of(all[1]));
  if (!has_placement(schedule)) return schedule;
  for (const GridPlacement written : all) {
    const std::string end = std::string(":").append(name_of(written));
    if (!schedule.ends_with(end)) continue;
    require(placement == name_of(written), "--schedule {} and --placement {} disagree: give one of them",
            schedule, placement);
    return schedule;
  }
  return schedule + ":" + std::string(placement);
}

}  // namespace annulus::options
