#include <algorithm>
#include <charconv>

#include <annulus/base/error.hpp>
#include <annulus/topology/job.hpp>

namespace annulus {
namespace {

std::optional<int> number(const Variables& variables, const char* name) {
  const auto text = variables(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
  require(code == std::errc() && end == text->data() + text->size() && value >= 0, "{}='{}' is not a number",
          name, *text);
  return value;
}

std::optional<LaunchedRank> by_names(const Variables& variables, const char* rank, const char* local_rank,
                                     const char* local_ranks) {
  const auto a = number(variables, rank), b = number(variables, local_rank),
             c = number(variables, local_ranks);
  if (!a || !b || !c) return std::nullopt;
  return LaunchedRank{.rank = *a, .local_rank = *b, .local_ranks = *c};
}

}  // namespace

std::optional<LaunchedRank> launched_rank(const Variables& variables) {
  // mpirun first: inside of a Slurm job its ranks see the variables of the step that started mpirun's daemon
  // too.
  if (auto found = by_names(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"))
    return found;
  if (auto found = by_names(variables, "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")) return found;
  const auto counts = variables("SLURM_STEP_TASKS_PER_NODE");
  const auto rank = number(variables, "SLURM_PROCID"), local = number(variables, "SLURM_LOCALID"),
             node = number(variables, "SLURM_NODEID");
  if (!counts || !rank || !local || !node)
    return std::nullopt;  // a batch script has the others, and is no rank
  const std::vector<int> tasks = expand_counts(*counts, "SLURM_STEP_TASKS_PER_NODE");
  require(*node < static_cast<int>(tasks.size()), "SLURM_NODEID={}, but SLURM_STEP_TASKS_PER_NODE={}", *node,
          *counts);
  return LaunchedRank{
      .rank = *rank, .local_rank = *local, .local_ranks = tasks[static_cast<std::size_t>(*node)]};
}

}  // namespace annulus
