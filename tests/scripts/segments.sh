#!/usr/bin/env bash
# segments.sh SLURM-FOLDER: the record of a run's job segments is shown, and gone on with.
set -euo pipefail
slurm=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
say() { echo "$*"; }

folder=$scratch/run
mkdir "$folder"
cat >"$folder/segments.jsonl" <<'JSON'
{"event":"start","time":"2026-01-01T00:00:00Z","job":7,"restart":0,"step":0,"nodes":["a","b"],"ranks":4,"sequences":2,"reason":""}
{"event":"end","time":"2026-01-01T01:00:00Z","job":7,"restart":0,"step":12,"reason":"time limit","status":0}
JSON
shown=$("$slurm/status" "$folder")
grep -q '^segment      1, job 7' <<<"$shown" || fail "status does not read segments.jsonl: $shown"

# shellcheck disable=SC2034
nodes=(a b) per_node=2 sequences=2 SLURM_JOB_ID=8
# shellcheck source=/dev/null
. "$slurm/lib/segments.sh"
begin_segment
[ "$(wc -l <"$folder/segments.jsonl")" = 3 ] || fail "the record does not go on: $(cat "$folder/segments.jsonl")"
tail -n 1 "$folder/segments.jsonl" | grep -q '"event":"start".*"reason":"time limit"' || fail "the segment before is not known"
shown=$("$slurm/status" "$folder")
grep -q '^segment      2, job 8' <<<"$shown" || fail "status does not read segments.jsonl: $shown"
