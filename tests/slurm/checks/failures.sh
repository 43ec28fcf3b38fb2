#!/usr/bin/env bash
# Runs that cannot go on stop and say so; chains of jobs end when the budget is reached; the folder of a run tells how it stands.
# shellcheck disable=SC2034,SC2154

# A learning rate with which the loss is no number at the second optimizer step, whenever it is tried again.
train broken --nodes=2 -- --set train.lr=1e30 --set train.min_lr=1e30
broken=$job

# Two jobs for 200 optimizer steps of 256 tokens; the first one is told to save on its way, as before its time limit.
chain=$(slowly on_login slurm/submit --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --time=30 --output="$work/chain.log" --tokens 51000 --chain 2 \
  train "$work/run.toml" --set run.folder="$work/chain" --set train.log_every=10) || fail "submit --chain"
mapfile -t jobs <<<"${chain//job /}"
[ ${#jobs[@]} -eq 2 ] || fail "not two jobs: $chain"
log=$work/chain.log
makes_steps chain 1
on_login scancel --batch --signal=USR1 "${jobs[0]}"
ends "${jobs[0]}" COMPLETED
ends "${jobs[1]}" COMPLETED
said "51000 tokens, 256 per optimizer step: train.steps = 200"
said "is not to be requeued"
said "resumed after optimizer step"
[ "$(records "$work/chain")" -eq 200 ] || fail "$(records "$work/chain") steps, not 200"
same_losses "$work/chain" 200

report=$(slurm/status "$work/chain")
for text in "step         200 of 200 (100.0%), 51200 tokens" "checkpoint   step-00000200," "segment      2, job ${jobs[1]}" \
  "asked to save (SIGUSR1)" "ended        at step 200"; do
  grep -qF -- "$text" <<<"$report" || fail "slurm/status should say '$text', says: $report"
done
if output=$(slurm/status "$work" 2>&1); then fail "slurm/status of a folder without a run"; fi
grep -q "holds no run" <<<"$output" || fail "slurm/status says: $output"

log=$work/broken.log
ends "$broken" FAILED
said "the loss of optimizer step 2 is not finite"
said "stopped: the run has failed 3 times at optimizer step 1"
[ "$(grep -c '"event":"start"' "$work/broken/segments.jsonl")" -ge 3 ] || fail "not three segments"
slurm/status "$work/broken" | grep -q "stopped .*failed 3 times at one step" || fail "slurm/status does not say that it stopped"

# No room for a checkpoint.
train full --nodes=2 -- --set run.folder="$work/small/run"
full=$job

# A disk that fills while the run goes on: checkpoints fail, the older one stays, and the job does not go on for ever without.
folder=$work/filling/run
filling() { endless train filling --nodes=2 -- --set run.folder="$folder"; }
filling
within "the run makes steps" has_steps "$folder" 12
head -c 30M /dev/zero >"$work/filling/others" 2>/dev/null || true
within "a checkpoint fails" logged "was not saved, training goes on"
on_login scancel --batch --signal=USR1 "$job"
ends "$job" FAILED
said "No space left on device"
mapfile -t kept < <(ls "$folder/checkpoints")
[[ "${kept[*]}" =~ ^(step-[0-9]+ ?)+$ ]] || fail "in the folder of checkpoints: ${kept[*]}"
said "node n1 could not write the last state of the run to '$folder'"
said "make room and submit the same again. It goes on from $folder/checkpoints/${kept[-1]}"
rm "$work/filling/others"
good=$((10#${kept[-1]#step-}))
filling
within "the run goes on after the checkpoint that stayed" logged "resumed after optimizer step $good from $folder/checkpoints/${kept[-1]}"
within "the run makes steps" has_steps "$folder" $((good + 10))
cancel "$job"
same_losses "$folder" $((good + 10))
slurm/status "$folder" >/dev/null || fail "slurm/status of a run whose disk was full"

log=$work/full.log
ends "$full" FAILED
said "MiB left in '$work/small/run', and a checkpoint takes"
