#!/usr/bin/env bash
set -euo pipefail
command -v shellcheck >/dev/null || { echo "shellcheck is not installed (Debian: apt install shellcheck)"; exit 77; }
shellcheck annulus .ci/run slurm/*.sbatch tests/scripts/*.sh
