#!/usr/bin/env bash
# The job segments of a run: run.folder/segments.jsonl (docs/slurm.md) remembers where each began and why it ended.
# Sourced after job.sh, with $folder set.
# shellcheck disable=SC2034,SC2154

failures_allowed=3

# The last optimizer step in metrics.jsonl, of which a crash may have torn the last line.
last_step() { tail -n 2 "$folder/metrics.jsonl" 2>/dev/null | sed -n 's/^{.*"step": *\([0-9][0-9]*\)[,}].*}$/\1/p' | tail -n 1 | grep . || echo 0; }
finished() { grep -q '"finished": true' "$folder/summary.json" 2>/dev/null; }

# A string of JSON, of one line.
json_text() {
  local text=${1//[[:cntrl:]]/ }
  text=${text//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}
record() { # EVENT [,"KEY":VALUE…]
  [ -z "$(tail -c 1 "$folder/segments.jsonl" 2>/dev/null)" ] || echo >>"$folder/segments.jsonl" || true  # a full disk has torn the last line
  echo "{\"event\":\"$1\",\"time\":\"$(date -u +%FT%TZ)\",\"job\":$SLURM_JOB_ID,\"restart\":${SLURM_RESTART_COUNT:-0},\"step\":$(last_step)${2:-}}" >>"$folder/segments.jsonl" ||
    say "note: $folder/segments.jsonl cannot be written (disk full?)"
}
# field KEY RECORD: its value, strings without their quotes; empty where the record is damaged.
field() {
  local pattern="\"$1\":(\"(([^\"\\]|\\\\.)*)\"|([0-9]+))[],}]" text
  [[ $2 =~ $pattern ]] || return 0
  text=${BASH_REMATCH[2]}${BASH_REMATCH[4]}
  text=${text//\\\"/\"}
  printf '%s\n' "${text//\\\\/\\}"
}

# How the segment before ended, as this one finds it. What takes the first node leaves no word of its own.
reason_of_restart() {
  local last dead=()
  last=$(tail -n 1 "$folder/segments.jsonl" 2>/dev/null || true)
  case $(field event "$last") in
    "") echo "" ;;
    end) field reason "$last" ;;
    *) mapfile -t dead < <(sed -n 's/.*"nodes":\[\([^]]*\)\].*/\1/p' <<<"$last" | tr -d '"' | tr , '\n')
       last=$(down_nodes ${dead[@]+"${dead[@]}"})
       if [ -n "$last" ]; then echo "node failed: $last"; else echo "cut off without a word (a node failed, or the job was killed)"; fi ;;
  esac
}

# Segments at the end of the list that failed, or were cut off without a word, at one and the same step. After a stop the count starts
# anew: whoever submits again has mended something.
failures_in_a_row() {
  [ -f "$folder/segments.jsonl" ] || { echo 0; return; }
  awk 'function get(key) { return match($0, "\"" key "\":\"?[^\",}]*") ? substr($0, RSTART, RLENGTH) : "" }
    function failed(step) { count = step == at ? count + 1 : 1; at = step }
    get("event") ~ /start$/ { if (open && get("reason") ~ /cut off/) failed(get("step")); open = 1 }
    get("event") ~ /end$/ { open = 0; if (get("reason") ~ /"failed/) failed(get("step")); else count = 0 }
    get("event") ~ /stop$/ { count = 0 }
    END { print count + 0 }' "$folder/segments.jsonl"
}
stop_for_good() {
  local count; count=$(failures_in_a_row)
  record stop ",\"reason\":$(json_text "failed $count times at one step")"
  refuse "stopped: the run has failed $count times at optimizer step $(last_step), so going on would fail again. The first line above that begins with 'annulus: rank' says why; mend it and submit the same again"
}

begin_segment() {
  local names; names=$(printf '"%s",' "${nodes[@]}")
  restarted=$(reason_of_restart)
  restarted=${restarted//[[:cntrl:]]/ }  # it stands in a record, which others may have written
  [ -z "$restarted" ] || say "the segment before ended at optimizer step $(last_step): $restarted"
  record start ",\"nodes\":[${names%,}],\"ranks\":$((${#nodes[@]} * per_node)),\"sequences\":$sequences,\"reason\":$(json_text "$restarted")"
  ended=""
}
end_segment() { # REASON STATUS: once
  [ -z "$ended" ] || return 0
  ended=yes
  record end ",\"reason\":$(json_text "$1"),\"status\":$2"
}

# Why Slurm has told this job to end.
reason_of_signal() { # USR1 or TERM
  local left end dead
  [ "$(job_field PreemptTime)" = None ] || [ -z "$(job_field PreemptTime)" ] || { echo preempted; return; }
  dead=$(down_nodes "${nodes[@]}")
  [ -z "$dead" ] || { echo "node failed: $dead"; return; }
  end=$(date -d "$(job_field EndTime)" +%s 2>/dev/null || echo 0)
  left=$((end - $(date +%s)))
  if [ "$1" = USR1 ]; then
    if [ "$end" -gt 0 ] && [ $left -le 660 ]; then echo "time limit"; else echo "asked to save (SIGUSR1)"; fi
  elif [ "$(job_field Restarts)" != "${SLURM_RESTART_COUNT:-0}" ]; then echo requeued
  else echo "cancelled, or out of time"; fi
}

# Nodes on which a step can no longer start. Slurm itself takes minutes to notice.
silent_nodes() {
  local node
  for node in "${nodes[@]}"; do
    { timeout 30 srun --mpi=none --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --nodelist="$node" --immediate=25 true 2>/dev/null || echo "$node"; } &
  done | sort | paste -sd' '
}

requeue() {
  # The signal of an scancel may end the programs before it reaches this script, and Slurm would requeue a cancelled job, too.
  case $(job_field JobState) in
    CANCELLED* | COMPLETING) say "Slurm ends this job: it is not requeued"; exit 0 ;;
  esac
  if [ "$(job_field Requeue)" = 0 ]; then
    say "this job is not to be requeued: the next of its chain, or the same sbatch command, goes on after optimizer step $(last_step)"
    exit 0
  fi
  scontrol requeue "$SLURM_JOB_ID" || refuse "Slurm does not requeue job $SLURM_JOB_ID: submit the same again, it goes on after optimizer step $(last_step)"
  sleep 120  # Slurm ends this script
  exit 0
}
