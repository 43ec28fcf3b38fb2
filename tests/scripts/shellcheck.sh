#!/usr/bin/env bash
set -euo pipefail
command -v shellcheck >/dev/null || { echo "shellcheck is not installed (Debian: apt install shellcheck)"; exit 77; }
shellcheck -x annulus .ci/run src/driver/*.sh slurm/submit slurm/*.sbatch slurm/lib/*.sh slurm/site.conf.example tests/scripts/*.sh tests/fuzz/standalone/*.sh tests/slurm/*.sh tests/slurm/checks/*.sh tests/slurm/lab/lab tests/slurm/lab/*.sh
