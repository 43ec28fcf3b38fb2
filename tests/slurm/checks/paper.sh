#!/usr/bin/env bash
# A paper's table over two nodes: rows with as many ranks as the job are measured, on both nodes; the others say what they need.
# shellcheck disable=SC2034,SC2154

log=$work/paper.log
tiny=(model.vocabulary=257 model.layers=1 model.hidden=32 model.heads=2 model.kv_heads=2 model.head_dim=16 model.ffn=32 memory.offload_optimizer=false)
paper() { # OUT ARGUMENTS…: sets $job
  job=$(on_login slurm/submit --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --time=10 --output="$log" paper "$work/$1" --shards "$work/shards" --device cpu \
    --tokens 256 "${@:2}" --set "${tiny[@]}" | sed 's/job //') || fail "submit paper"
  ends "$job" COMPLETED
}
paper checkpoints --table distflashattn:checkpoints --ranks 4
said "nodes: n"
said "--ranks-per-node 2"
python3 - "$work/checkpoints.csv" <<'PYTHON' || fail "checkpoints.csv"
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
assert len(rows) == 3 and all(float(row["measured"]) > 0 and float(row["predicted"]) > 0 and row["paper"] for row in rows), rows
PYTHON
grep -q '2 nodes' "$work"/checkpoints-runs/*measured.log || fail "the ranks were not on both nodes"

paper groups --table burstengine:4
grep -q '64 ranks, 4 here' "$work/groups.csv" || fail "groups.csv does not say what its rows need"

# Sparse steps on two nodes, and the same command once more, which has nothing left to measure.
paper steps --table mtraining:steps --rows hierarchical --ranks 4 --tokens 8192
grep -q 'recall' "$work/steps.md" || fail "steps.md does not say what was selected"
cp "$work/steps.csv" "$work/steps-before.csv"
paper steps --table mtraining:steps --rows hierarchical --ranks 4 --tokens 8192 --continue missing
cmp "$work/steps.csv" "$work/steps-before.csv" || fail "steps were measured again"
python3 - "$work/steps.csv" <<'PYTHON' || fail "steps.csv"
import csv, sys
rows = [row for row in csv.DictReader(open(sys.argv[1])) if row["quantity"] == "speed"]
assert len(rows) == 3 and all(float(row["measured"]) > 0 for row in rows), rows
PYTHON
