#!/usr/bin/env bash
# What the checks of tests/slurm have in common; sourced by run.sh, which sets $work, $bin and $lab.
# Nothing here or there counts on a machine's speed: whatever the next act needs is waited for.
# shellcheck disable=SC2034,SC2154

patience=${LAB_PATIENCE:-300}  # seconds after which what is waited for will not come

# What a failed check shows beside its message: the newest log of a job, and how nodes and jobs stand.
fail() {
  trap - ERR
  echo "FAILED: $check: $*" >&2
  if [ -n "${log:-}" ] && [ -f "$log" ]; then sed 's/^/    /' "$log" | tail -n 60 >&2; fi
  { on_login sinfo -N -l; on_login squeue -t all -o '%.4i %.12j %.12T %.4D %.12N %.8M %r'; } 2>&1 | sed 's/^/    /' >&2 || true
  exit 1
}
on_login() { "$lab" run "$@"; }
state() { on_login squeue -h -t all -j "$1" -o %T 2>/dev/null | sort -u | paste -sd' '; }

# within WHAT COMMAND…: the command succeeds in time.
within() {
  local end=$((SECONDS + patience)) what=$1
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "$what: not in $patience s"
    sleep 0.2
  done
}
is() { [ "$(state "$1")" = "$2" ]; }
has_ended() { [[ $(state "$1") =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT)$ ]]; }
# ends JOB STATE
ends() {
  within "job $1 ends" has_ended "$1"
  is "$1" "$2" || fail "job $1 ended as $(state "$1"), not $2"
}
cancel() { on_login scancel "$1"; ends "$1" CANCELLED; }
all_idle() { within "all nodes are idle" "$lab" idle; }
logged() { grep -qF -- "$1" "$log" 2>/dev/null; }
said() { logged "$1" || fail "the log should say '$1'"; }

records() { if [ -f "$1/metrics.jsonl" ]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }
has_steps() { [ "$(records "$1")" -ge "$2" ]; }
makes_steps() { within "$1 makes steps" has_steps "$work/$1" "${2:-12}"; }
losses() { sed 's/.*"loss":\([^,]*\),.*/\1/' "$1/metrics.jsonl"; }
# same_losses FOLDER COUNT: bit for bit those of the uninterrupted run.
same_losses() {
  uninterrupted "$2"
  cmp -s <(losses "$1" | head -n "$2") <(losses "$work/plain" | head -n "$2") || fail "$1: other losses than those of the uninterrupted run, in the first $2 steps"
}
# segments FOLDER EVENT KEY: what the records of such an event say, one a line.
segments() { sed -n "s/.*\"event\":\"$2\".*\"$3\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$1/segments.jsonl" 2>/dev/null; }
restarted_for() { segments "$1" start reason | grep -qE -- "$2"; }
# goes_on NAME PATTERN: a later segment is told this reason, and makes steps; $step is where the segment before ended.
goes_on() {
  within "$1 goes on after: $2" restarted_for "$work/$1" "$2"
  step=$(grep -E "\"reason\":\"[^\"]*$2" "$work/$1/segments.jsonl" | grep '"event":"start"' | tail -n 1 | sed 's/.*"step":\([0-9]*\).*/\1/')
  makes_steps "$1" $((step + 10))
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

# slowly COMMAND…: submits a run that makes some twenty optimizer steps a second: a disk that is slow for TensorBoard's events, and for
# nothing else, has it wait after each of them and leave the cores to others.
slowly() { SLOW_DISK_PATH=/events.out SLOW_DISK_RATE=25000 "$@"; }
# endless COMMAND…: such a run, which goes on until it is cancelled.
endless() { slowly "$@" --set train.steps=1000000; }

# uninterrupted [COUNT]: the run that all others are compared with, of as many optimizer steps.
uninterrupted() {
  local steps=300 job log
  ! has_steps "$work/plain" "${1:-1}" || return 0
  [ "${1:-1}" -le $steps ] || steps=$((2 * $1))
  rm -rf "$work/plain" "$work/plain.log"
  train plain --nodes=2 -- --set "train.steps=$steps"
  ends "$job" COMPLETED
}
