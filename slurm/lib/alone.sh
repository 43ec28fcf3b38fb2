#!/usr/bin/env bash
# alone.sh PROGRAM ARGUMENTS…: one process for itself. Left with the variables of a job, MPI would look for its fellows.
set -euo pipefail
mapfile -t job < <(compgen -e | grep -E '^(SLURM|SLURMD|PMI|PMIX|OMPI_COMM)_')
for name in ${job[@]+"${job[@]}"}; do unset "$name"; done
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec "$@"
