#!/usr/bin/env bash
# ranks.sh -n RANKS PROGRAM ARGUMENTS…: what mpirun is to scripts, in a job of Slurm: ranks on its nodes as all templates start them. RANKS are those
# of whole nodes. SIGTERM ends the ranks at once.
# shellcheck disable=SC2015,SC2034,SC2154  # variables of slurm/lib; refuse ends the script
set -euo pipefail
slurm=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for part in job launch; do
  # shellcheck source=/dev/null
  . "$slurm/lib/$part.sh"
done

[ $# -ge 3 ] && [ "$1" = -n ] && is_positive "$2" || refuse "usage: ranks.sh -n RANKS PROGRAM ARGUMENTS…"
begin_job
topology_program=$(program annulus-topology)
plan_ranks
choose_launcher
choose_network
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ $(($2 % per_node)) -eq 0 ] && [ $(($2 / per_node)) -le ${#nodes[@]} ] ||
  refuse "$2 ranks are not those of whole nodes: this job has ${#nodes[@]} nodes with $per_node ranks each"
# The caller runs one program at a time, so that all steps of the job are this one's.
end_steps() {
  local step
  for step in $(squeue -h -s -j "$SLURM_JOB_ID" -o %i); do
    [[ $step == *.batch || $step == *.extern ]] || scancel --signal=KILL "$step"
  done
  exit 143
}
trap end_steps TERM
start $(($2 / per_node)) "${@:3}"
wait "$launched"
