#!/usr/bin/env bash
# What ends a piece of a run, and that the run goes on with the losses of the uninterrupted one. The first jobs run side by side.
# shellcheck disable=SC2034,SC2154

uninterrupted

train usr1 --nodes=2
usr1=$job
train requeue --nodes=2
requeue=$job
# Slurm may send the signal a minute early: what counts is that it comes.
train limit --nodes=2 --time=1 --signal=B:USR1@50 -- --set train.steps=1000000
limit=$job

within 150 "usr1 makes updates" has_steps "$work/usr1" 12
on_login scancel --batch --signal=USR1 "$usr1"
within 150 "requeue makes updates" has_steps "$work/requeue" 12
on_login scontrol requeue "$requeue"

log=$work/usr1.log; ends "$usr1" COMPLETED
ended_first "$work/usr1" 'asked to save'
same_curve "$work/usr1"
log=$work/requeue.log; ends "$requeue" COMPLETED
ended_first "$work/requeue" requeued
same_curve "$work/requeue"
said "going on after step"

log=$work/limit.log
within 100 "the run goes on after its time limit" restarted "$work/limit"
first=$(sed -n 's/.*"event":"end".*"step":\([0-9]*\),.*/\1/p' "$work/limit/pieces.jsonl" | head -n 1)
within 150 "the second piece makes updates" has_steps "$work/limit" $((first + 5))
ended_first "$work/limit" 'time limit'
same_curve "$work/limit"
on_login scancel "$limit"

# All nodes for somebody more important, then back.
train preempted --nodes=2
within 150 "updates before preemption" has_steps "$work/preempted" 12
urgent=$(on_login sbatch --parsable --partition=urgent --nodes=4 --exclusive --output=/dev/null --time=5 --wrap 'sleep 2')
ends "$urgent" COMPLETED
ends "$job" COMPLETED
ended_first "$work/preempted" preempted
same_curve "$work/preempted"

# A node dies: others take its place. The batch script runs on the first node, so the second one is taken.
train death --nodes=2 -- --set train.steps=1000000
death=$job
within 150 "updates before the node dies" has_steps "$work/death" 12
mapfile -t nodes < <(on_login scontrol show hostnames "$(on_login squeue -h -j "$death" -o %N)")
"$lab" kill "${nodes[1]}"
within 150 "the run goes on after the node's death" restarted "$work/death"
within 150 "updates after the node's death" has_steps "$work/death" 40
ended_first "$work/death" "node failed: ${nodes[1]}"
same_curve "$work/death"
on_login scancel "$death"
"$lab" boot "${nodes[1]}"
idle() { [ "$(on_login sinfo -h -N -p batch -t idle -o %n | sort -u | wc -l)" -eq 4 ]; }
within 150 "all nodes are idle again" idle

# With --nodes MIN-MAX the run goes on with those that remain, on another number of ranks. The node is the one of the batch script.
log=$work/fewer.log
fewer=$(on_login slurm/submit --nodes 3-4 --output="$log" --time=30 train "$work/run.toml" --set run.folder="$work/fewer" --set train.steps=1000000 |
  sed 's/job //')
within 150 "updates on four nodes" has_steps "$work/fewer" 12
[ "$(on_login squeue -h -j "$fewer" -o %D)" -eq 4 ] || fail "not on four nodes"
"$lab" kill n1
within 150 "the run goes on with three nodes" restarted "$work/fewer"
within 150 "updates on three nodes" has_steps "$work/fewer" 40
said "3 nodes × 2 ranks"
ended_first "$work/fewer" "node failed: n1"
# Sums in another order: the same losses to rounding.
paste <(losses "$work/fewer" | head -n 40) <(losses "$work/plain" | head -n 40) |
  awk '{ d = $1 - $2; if (d > 1e-3 || d < -1e-3) { print NR, $0; exit 1 } }' || fail "another loss curve on other numbers of ranks"
on_login scancel "$fewer"
"$lab" boot n1
within 150 "all nodes are idle again" idle
