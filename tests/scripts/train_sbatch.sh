#!/usr/bin/env bash
# train_sbatch.sh ANNULUS-TRAIN ANNULUS-TOKENS: slurm/train.sbatch with stand-ins for Slurm's commands. Told that its time is up it
# saves and requeues; run again it goes on to the end and does not requeue.
set -euo pipefail
train=$1 tokens=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; cat "$scratch/out"; exit 1; }

mkdir "$scratch/bin"
printf '#!/bin/sh\necho "$@" >>"%s/requeued"\n' "$scratch" >"$scratch/bin/scontrol"
# shellcheck disable=SC2016  # the arguments are the stand-in's own
printf '#!/bin/sh\n[ "$1" = --mpi=list ] && echo none\n' >"$scratch/bin/srun"
chmod +x "$scratch/bin/"*
export PATH=$scratch/bin:$PATH SLURM_JOB_ID=17 SLURM_CPUS_PER_TASK=1
ANNULUS_BIN=$(dirname "$train")
export ANNULUS_BIN OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

"$tokens" pack --out "$scratch/shards" data/fixture/text >"$scratch/out" 2>&1 || fail "pack"
run=(data/demo.toml --set "data.shards=$scratch/shards" --set "run.folder=$scratch/a run" --set model.layers=1
  --set data.sequence_length=64 --set train.warmup_steps=2)

bash slurm/train.sbatch "${run[@]}" --set train.steps=1000000 >"$scratch/out" 2>&1 &
script=$!
for ((i = 0; i < 300; ++i)); do [ -s "$scratch/a run/metrics.jsonl" ] && break; sleep 0.1; done
kill -USR1 "$script"
wait "$script" || fail "status $?"
grep -q "requeue 17" "$scratch/requeued" || fail "it was not requeued"
rm "$scratch/requeued"

done_steps=$(sed -n 's/.*"last_step": \([0-9]*\),/\1/p' "$scratch/a run/summary.json")
bash slurm/train.sbatch "${run[@]}" --set train.steps=$((done_steps + 2)) >"$scratch/out" 2>&1 || fail "going on: status $?"
[ ! -e "$scratch/requeued" ] || fail "a finished run was requeued"
grep -q "going on after step $done_steps" "$scratch/out" || fail "it did not go on"

status=0
bash slurm/train.sbatch "${run[@]}" --set train.lr=-1 >"$scratch/out" 2>&1 || status=$?
[ "$status" -ne 0 ] || fail "an error gave status 0"
[ ! -e "$scratch/requeued" ] || fail "an error was requeued"
