#!/usr/bin/env bash
# driver_signals.sh ANNULUS-TRAIN ANNULUS-TOKENS: a run under `./annulus run` that is told to stop saves, ends with status 0
# and leaves no process behind; one that fails gives its status on.
set -euo pipefail
train=$1 tokens=$2
scratch=$(mktemp -d)
export TMPDIR=$scratch/tmp  # of the drivers
mkdir "$TMPDIR"
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; cat "$scratch/out"; exit 1; }

"$tokens" pack --out "$scratch/shards" data/fixture/text >"$scratch/out" 2>&1 || fail "pack"
small=(data/demo.toml --set "data.shards=$scratch/shards" --set "run.folder=$scratch/run" --set model.layers=1
  --set data.sequence_length=64 --set train.steps=1000000)

records() { if [ -f "$scratch/run/metrics.jsonl" ]; then wc -l <"$scratch/run/metrics.jsonl"; else echo 0; fi; }

for signal in TERM USR1 HUP XCPU; do
  before=$(records)
  ./annulus run 2 "$train" "${small[@]}" >"$scratch/out" 2>&1 &
  driver=$!
  for ((i = 0; i < 300; ++i)); do [ "$(records)" -gt $((before + 2)) ] && break; sleep 0.1; done
  begin=$SECONDS
  kill -"$signal" "$driver"
  wait "$driver" || fail "SIG$signal: status $?"
  [ $((SECONDS - begin)) -le 10 ] || fail "SIG$signal: it took $((SECONDS - begin)) s"
  grep -q "stopped by SIG$signal" "$scratch/out" || fail "SIG$signal did not reach the ranks, or under another name"
  grep -q "stopped by SIG$signal" "$scratch/run/train.log" || fail "SIG$signal: train.log"
  grep -q '"finished": false' "$scratch/run/summary.json" || fail "SIG$signal: summary.json"
  if pgrep -f "run.folder=$scratch/run" >/dev/null; then fail "SIG$signal: processes are left"; fi
done

status=0
./annulus run 2 "$train" "${small[@]}" --set train.step=3 >"$scratch/out" 2>&1 || status=$?
[ "$status" -eq 1 ] || fail "an error gave status $status"
grep -q "did you mean 'train.steps'" "$scratch/out" || fail "the error was not shown"

# A reader of the log that goes away ends nothing.
./annulus run 2 "$train" "${small[@]}" --set "run.folder=$scratch/read" --set train.steps=50 --set train.log_every=1 2>&1 |
  head -n 1 >"$scratch/out" || fail "the run ended with its reader"
grep -q '"finished": true' "$scratch/read/summary.json" || fail "the run ended with its reader"

for where in /dev/full closed; do
  status=0
  if [ $where = closed ]; then
    ./annulus run 2 "$train" --version >&- 2>"$scratch/out" || status=$?
  else
    ./annulus run 2 "$train" --version >$where 2>"$scratch/out" || status=$?
  fi
  [ "$status" -eq 1 ] || fail "output to $where gave status $status"
  grep -q "standard output could not be written" "$scratch/out" || fail "output to $where: nobody has said so"
done
# A reader of the output that has seen enough wants no error.
{ ./annulus run 2 "$train" --print-config 2>"$scratch/out"; echo $? >"$scratch/status"; } | true || true
[ ! -s "$scratch/out" ] || fail "a reader that has gone away is told"
[ "$(cat "$scratch/status")" -eq 141 ] || fail "a reader that has gone away gave status $(cat "$scratch/status")"
./annulus run 2 "$train" --version >"$scratch/out" || fail "--version"
grep -q "^annulus-train [0-9]" "$scratch/out" || fail "--version printed something else"
for left in "$TMPDIR"/annulus-*; do [ ! -e "$left" ] || fail "left behind: $left"; done
