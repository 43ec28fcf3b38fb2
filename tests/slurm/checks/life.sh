#!/usr/bin/env bash
# What ends a segment of a run, and that the run goes on with the losses of the uninterrupted one. The first runs go side by side.
# shellcheck disable=SC2034,SC2154

all_idle
endless train usr1 --nodes=2 --nodelist=n1,n2 --
usr1=$job
endless train requeue --nodes=2 --nodelist=n1,n2 --
requeue=$job
endless train preempted --nodes=2 --nodelist=n3,n4 --
preempted=$job
# Slurm may send the signal a minute early: what counts is that it comes.
endless train limit --nodes=2 --nodelist=n1,n2 --time=2 --signal=B:USR1@80 -- --set checkpoint.every=200 --set checkpoint.keep=1000
limit=$job

# All of two nodes for somebody more important, then back.
makes_steps preempted
urgent=$(on_login sbatch --parsable --partition=urgent --nodes=2 --nodelist=n3,n4 --exclusive --output=/dev/null --time=5 --wrap true)
makes_steps usr1
on_login scancel --batch --signal=USR1 "$usr1"
makes_steps requeue
on_login scontrol requeue "$requeue"
ends "$urgent" COMPLETED

# resumed NAME JOB REASON
resumed() {
  log=$work/$1.log
  goes_on "$1" "$3"
  cancel "$2"
  said "the segment before ended at optimizer step $step: "
  said "resumed after optimizer step $step from "
}
resumed usr1 "$usr1" 'asked to save'
same_losses "$work/usr1" $((step + 10))
resumed requeue "$requeue" requeued
same_losses "$work/requeue" $((step + 10))
resumed preempted "$preempted" preempted
same_losses "$work/preempted" $((step + 10))
# In so much time there are hundreds of optimizer steps: those since the last regular checkpoint are made again, without an interruption.
resumed limit "$limit" 'time limit'
from=$(((step - 1) / 200 * 200)) checkpoint=()
[ $from -eq 0 ] || checkpoint=(--resume "$work/limit/checkpoints/step-$(printf %08d $from)")
train again --nodes=2 -- --set train.steps=$((step + 10)) "${checkpoint[@]}"
ends "$job" COMPLETED
cmp -s <(losses "$work/limit" | sed -n "$((from + 1)),$((step + 10))p") <(losses "$work/again") || fail "other losses than those of the uninterrupted run, after optimizer step $from"

# A node dies: others take its place. The batch script runs on the first node, so the second one is taken.
all_idle
endless train death --nodes=2 --
death=$job
makes_steps death
mapfile -t nodes < <(on_login scontrol show hostnames "$(on_login squeue -h -j "$death" -o %N)")
"$lab" kill "${nodes[1]}"
goes_on death "node failed: .*${nodes[1]}"
same_losses "$work/death" $((step + 10))
cancel "$death"
"$lab" boot "${nodes[1]}"

# With --nodes MIN-MAX the run goes on with those that remain, on another number of ranks. The node is the one of the batch script,
# and Slurm is told of its end (above it has found out by itself).
all_idle
log=$work/fewer.log
fewer=$(endless on_login slurm/submit --nodes 3-4 --output="$log" --time=30 train "$work/run.toml" --set run.folder="$work/fewer" | sed 's/job //')
makes_steps fewer
[ "$(on_login squeue -h -j "$fewer" -o %D)" -eq 4 ] || fail "not on four nodes"
"$lab" kill n1
on_login scontrol update nodename=n1 state=down reason="power failure"
goes_on fewer "node failed: n1"
said "3 nodes × 2 ranks"
# Sums in another order: the same losses to rounding.
uninterrupted $((step + 10))
paste <(losses "$work/fewer" | head -n $((step + 10))) <(losses "$work/plain" | head -n $((step + 10))) |
  awk '{ d = $1 - $2; if (d > 1e-3 || d < -1e-3) { print NR, $0; exit 1 } }' || fail "another loss curve on other numbers of ranks"
cancel "$fewer"
"$lab" boot n1
all_idle
