#!/usr/bin/env bash
# What the checks of tests/slurm have in common; sourced by run.sh, which sets $work, $bin and $lab.
# shellcheck disable=SC2034,SC2154

# What a failed check shows beside its message: the newest log of a job.
fail() {
  echo "FAILED: $check: $*" >&2
  if [ -n "${log:-}" ] && [ -f "$log" ]; then sed 's/^/    /' "$log" | tail -n 60 >&2; fi
  exit 1
}
on_login() { "$lab" run "$@"; }
state() { on_login squeue -h -t all -j "$1" -o %T 2>/dev/null | sort -u | paste -sd' '; }

# within SECONDS WHAT COMMAND…: the command succeeds in time.
within() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "$what: not in time"
    sleep 0.2
  done
}
is() { [ "$(state "$1")" = "$2" ]; }
has_ended() { [[ $(state "$1") =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT)$ ]]; }
# ends JOB STATE [SECONDS]
ends() {
  within "${3:-200}" "job $1 ends" has_ended "$1"
  is "$1" "$2" || fail "job $1 ended as $(state "$1"), not $2"
}
said() { grep -qF -- "$1" "$log" || fail "the log should say '$1'"; }

records() { if [ -f "$1/metrics.jsonl" ]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }
has_steps() { [ "$(records "$1")" -ge "$2" ]; }
restarted() { [ "$(grep -c '"event":"start"' "$1/pieces.jsonl" 2>/dev/null)" -ge 2 ]; }
losses() { sed 's/.*"loss":\([^,]*\),.*/\1/' "$1/metrics.jsonl"; }
# same_curve FOLDER: bit for bit the losses of the uninterrupted run, as far as both went.
same_curve() {
  local count; count=$(records "$1")
  [ "$count" -le "$(records "$work/plain")" ] || count=$(records "$work/plain")
  cmp -s <(losses "$1" | head -n "$count") <(losses "$work/plain" | head -n "$count") || fail "$1: another loss curve than the uninterrupted run"
}
# ended_first FOLDER PATTERN: why the first piece of the run ended, as the second was told.
ended_first() {
  local reason; reason=$(grep '"event":"start"' "$1/pieces.jsonl" | sed -n '2s/.*"reason":"\([^"]*\)".*/\1/p')
  [[ $reason =~ $2 ]] || fail "the first piece ended for '$reason', not $2"
}

# train NAME SBATCH-OPTIONS… -- ARGUMENTS…: submits the template for a run in $work/NAME; sets $job and $log.
train() {
  local name=$1 options=(); shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  log=$work/$name.log
  job=$(on_login sbatch --parsable --output="$log" --ntasks-per-node=1 --cpus-per-task=1 --time=30 ${options[@]+"${options[@]}"} \
    slurm/train.sbatch "$work/run.toml" --set "run.folder=$work/$name" "$@") || fail "sbatch"
}

# The run that is not interrupted, once.
uninterrupted() {
  [ ! -f "$work/plain/summary.json" ] || return 0
  train plain --nodes=2
  ends "$job" COMPLETED
}
