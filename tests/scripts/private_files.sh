#!/usr/bin/env bash
# What batch scripts write for themselves lies under names that nobody knows beforehand: links that others put where earlier
# versions wrote are not followed, and nothing is left behind. Slurm and the programs are stand-ins.
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; cat "$scratch/out"; exit 1; }
mkdir "$scratch/bin" "$scratch/tmp" "$scratch/run"

stand_in() { { echo '#!/usr/bin/env bash'; cat; } >"$scratch/bin/$1"; chmod +x "$scratch/bin/$1"; }
stand_in srun <<'SH'
[ "$1" != --mpi=list ] || { echo pmix; exit; }
while [[ $1 == -* ]]; do shift; done
exec "$@"
SH
stand_in scontrol </dev/null
stand_in sinfo </dev/null
stand_in annulus-train <<<'echo annulus-train 0'
stand_in annulus-topology <<'SH'
while [ $# -gt 0 ] && [ "$1" != --hostfile ]; do shift; done
echo "$2 $(stat -c %a "$(dirname "$2")")" >>"$HOSTFILES"
hostname >"$2"
echo "ANNULUS_NODES=1 ANNULUS_NODELIST=$(hostname) ANNULUS_SWITCHES= ANNULUS_RANKS_PER_NODE=1 ANNULUS_CPUS_PER_RANK=1 ANNULUS_DISTRIBUTION=arbitrary"
SH

echo precious >"$scratch/victim"
ln -s ../victim "$scratch/tmp/annulus-nodes.17"
ln -s ../victim "$scratch/run/.annulus-17"
# shellcheck disable=SC2016  # the script expands them
env PATH="$scratch/bin:$PATH" TMPDIR="$scratch/tmp" HOSTFILES="$scratch/hostfiles" SLURM_JOB_ID=17 ANNULUS_BIN="$scratch/bin" \
  ANNULUS_SITE_PROFILE="" bash -c '
    set -euo pipefail
    slurm=slurm
    for part in job launch check; do . "slurm/lib/$part.sh"; done
    begin_job
    plan_launch
    check_nodes "$(program annulus-train)" "$1"' bash "$scratch/run" >"$scratch/out" 2>&1 || fail "status $?"

grep -q "checked: 1 nodes alike" "$scratch/out" || fail "the nodes were not checked"
[ "$(cat "$scratch/victim")" = precious ] || fail "a link was followed"
[[ $(cat "$scratch/hostfiles") =~ ^"$scratch"/tmp/annulus\.[A-Za-z0-9]{12}/nodes\ 700$ ]] || fail "the host file: $(cat "$scratch/hostfiles")"
left=$(cd "$scratch" && find tmp run -mindepth 1 | sort | xargs)
[ "$left" = "run/.annulus-17 tmp/annulus-nodes.17" ] || fail "left behind: $left"
