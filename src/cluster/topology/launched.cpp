
#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"
#include "cluster/topology/job.hpp"

namespace annulus {
namespace {

std::optional<int> number(const Variables& variables, const char* name) {
  const auto text = variables(name);
  if (!text) return std::nullopt;
  const int value = parse_number<int>(*text).value_or(-1);
  require(value >= 0, "{}='{}' is not a number", name, *text);
  return value;
}

std::optional<LaunchedRank> by_names(const Variables& variables, const char* rank, const char* local_rank,
                                     const char* local_ranks) {
  const auto a = number(variables, rank), b = number(variables, local_rank),
             c = number(variables, local_ranks);
  if (!a || !b || !c) return std::nullopt;
  return LaunchedRank{.rank = *a, .local_rank = *b, .local_ranks = *c};
}

/// A batch script and the shell of salloc are steps, too, with numbers at the end of the range.
bool is_step_of_ranks(const Variables& variables) {
  const auto step = variables("SLURM_STEP_ID");
  return step && step->size() <= 9;
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
  return LaunchedRank{.rank = *rank, .local_rank = *local, .local_ranks = tasks[*node]};
}

std::optional<SeveralRanks> several_ranks(const Variables& variables) {
  struct Launcher {
    const char* size;
    const char* rank;
    const char* name;
    bool of_steps = false;
  };
  // The nearest one decides: mpirun's daemons are a step of Slurm's, whose variables their ranks see.
  constexpr Launcher open_mpi{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun of Open MPI"};
  Launcher pmi{"PMI_SIZE", "PMI_RANK", "a launcher by PMI"};
  constexpr Launcher slurm{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun", true};
  if (variables("MPI_LOCALNRANKS"))
    pmi.name = "mpiexec of MPICH or Intel MPI";
  else if (variables("PALS_APID"))
    pmi.name = "mpiexec of PALS";
  else if (variables("FLUX_JOB_ID"))
    pmi.name = "flux run";
  else if (is_step_of_ranks(variables))
    pmi.name = "srun --mpi=pmi2";
  for (const Launcher& launcher : {open_mpi, pmi, slurm}) {
    const auto size = number(variables, launcher.size);
    if (!size || (launcher.of_steps && !is_step_of_ranks(variables))) continue;
    if (*size <= 1) return std::nullopt;
    return SeveralRanks{.rank = number(variables, launcher.rank).value_or(0),
                        .launcher = launcher.name,
                        .evidence = std::string(launcher.size) + "=" + std::to_string(*size),
                        .all_know = true};
  }
  const auto rank = variables("PMIX_RANK");
  if (!rank || *rank == "0") return std::nullopt;
  return SeveralRanks{.rank = number(variables, "PMIX_RANK").value_or(0),
                      .launcher = "a launcher by PMIx",
                      .evidence = "PMIX_RANK=" + *rank,
                      .all_know = false};
}

}  // namespace annulus
