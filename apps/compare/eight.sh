#!/usr/bin/env bash
# The tables for eight GPUs of one machine, in commands of at most nine minutes each. eight.sh --help explains them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'TXT'
usage: eight.sh attention|nodes|training|million|longest [OPTIONS]

  attention  every schedule beside PyTorch's context_parallel, causal, 32 heads of 128: T, 2T and 4T tokens on one node, and T on two
             emulated nodes, three rounds in turns (attention.py)
  nodes      two emulated nodes with T and 2T in three rounds, 4T in one
  training   the model of 7 billion parameters on T, 2T and 4T tokens, PyTorch (FSDP2, context_parallel, torch.compile) on T and 2T;
             from 2T on activations wait in the host's memory, and at the end 2T without that (training.py)
  million    the same on 8T tokens, two optimizer steps
  longest    the same on 1400000 / 131072 · T tokens, one optimizer step, three tenths of the activations in the host's memory

options
  --gpus N       of this machine (default: all)
  --ranks N      more than GPUs: ranks take turns on them, on as many emulated nodes as NCCL needs; a try, no speeds (default: one a GPU)
  --tokens T     (default: 131072)
  --bin DIR      where annulus-bench, annulus-train and annulus-tokens lie (default: build/cuda/bin of this tree)
  --config FILE  the model (default: data/llama-7b.toml)
  --shards DIR   the run's data.shards (default: sources and documents of this tree, packed)
  --set KEY=VALUE…   of annulus-train, one argument with blanks between, for all of its runs
  --device cpu   training, million and longest on ranks of the host's cores, for a try; --gpus is the number of ranks then
  --budget S     seconds for the command; what does not fit is cut and told (default: 520)
  --mpirun CMD   with its flags (default: mpirun --allow-run-as-root --bind-to none)
  --python CMD   a Python with PyTorch (default: python3)
  --without-pytorch
  --out DIR      (default: eight); tables are DIR/*.md, what was measured DIR/*.json

The tables go to stdout. The exit status is 1 when a program failed or the time did not suffice.
TXT
}
die() { echo "eight.sh: $*" >&2; exit 2; }

[ $# -ge 1 ] || { usage >&2; exit 2; }
what=$1; shift
case $what in
  attention | nodes | training | million | longest) ;;
  -h | --help | help) usage; exit 0 ;;
  *) die "there is no command '$what': give attention, nodes, training, million or longest" ;;
esac
gpus='' ranks='' tokens=131072 bin=$root/build/cuda/bin config=$root/data/llama-7b.toml shards='' set='' device=gpu budget=520 python=python3
mpirun='mpirun --allow-run-as-root --bind-to none' pytorch=yes out=eight
while [ $# -gt 0 ]; do
  case $1 in
    --without-pytorch) pytorch=no; shift; continue ;;
    -h | --help) usage; exit 0 ;;
    --gpus | --ranks | --tokens | --bin | --config | --shards | --set | --device | --budget | --mpirun | --python | --out) ;;
    *) die "there is no option '$1' (eight.sh --help)" ;;
  esac
  [ $# -ge 2 ] || die "$1 needs a value (eight.sh --help)"
  printf -v "${1#--}" %s "$2"
  shift 2
done
read -r -a settings <<<"$set"
number() { [[ $2 =~ ^[1-9][0-9]*$ ]] || die "$1 $2: give a number from 1 on"; }
number --tokens "$tokens"
number --budget "$budget"
if [ -z "$gpus" ]; then
  [ "$device" = gpu ] || die "--device $device: give --gpus, the number of ranks"
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ') || die "this machine shows no NVIDIA GPU (nvidia-smi --list-gpus)"
fi
number --gpus "$gpus"
ranks=${ranks:-$gpus}
number --ranks "$ranks"
nodes=1
if [ "$device" = gpu ]; then nodes=$(((ranks + gpus - 1) / gpus)); fi
[ $((ranks % nodes)) -eq 0 ] || die "$ranks ranks cannot be dealt to $nodes nodes, as many as $gpus GPUs need: give a multiple of $gpus"
[ "$ranks" -eq "$gpus" ] || pytorch=no # in turns PyTorch's training would not fit, and its times say nothing
mkdir -p "$out"
if [ -z "$shards" ] && [[ $what != @(attention|nodes) ]]; then
  shards=$out/shards
  [ -d "$shards" ] || "$bin/annulus-tokens" pack --out "$shards" "$root/docs" "$root/src" "$root/include" "$root/apps"
fi

begun=$SECONDS status=0 tables=()
left() { echo $((budget - (SECONDS - begun))); }
# table NAME SCRIPT ARGUMENTS…: one table, in what is left of the time
table() {
  local name=$1 script=$2 seconds
  shift 2
  seconds=$(left)
  if [ "$seconds" -lt 5 ]; then
    echo "eight.sh: $name was not run, as $budget s were over (--budget)" >&2
    status=1
    return
  fi
  "$python" "$here/$script" "$@" --gpus "$gpus" --ranks "$ranks" --mpirun "$mpirun" --budget "$seconds" --out "$out/$name" >/dev/null || status=1
  tables+=("$name")
}
attention() { # NAME NODES ROUNDS TOKENS…
  local name=$1 on=$2 rounds=$3 more=() schedules=(ring double-ring burst topology-burst hierarchical all-gather ulysses)
  shift 3
  [ "$pytorch" = yes ] || more+=(--without-pytorch)
  if [ "$ranks" -gt 2 ] && [ $((ranks % 2)) -eq 0 ]; then schedules+=("hybrid:2x$((ranks / 2))"); fi
  table "$name" attention.py --bench "$bin/annulus-bench" --nodes "$on" --rounds "$rounds" --repetitions 2 --tokens "$@" \
    --schedules "${schedules[@]}" ${more[@]+"${more[@]}"}
}
training() { # NAME ARGUMENTS…
  local name=$1
  shift
  table "$name" training.py --train "$bin/annulus-train" --config "$config" --shards "$shards" --device "$device" --nodes "$nodes" \
    ${settings[@]+--set "${settings[@]}"} "$@"
}
selective='selective: memory.recompute=selective'
offloaded() { echo "selective, $1 of the activations offloaded: memory.recompute=selective memory.offload_activations=$1"; }
# What only GPUs have stays away from a try on the host's cores.
if [ "$device" = cpu ]; then offloaded() { echo 'full: memory.recompute=full'; }; fi
peer=()
[ "$pytorch" = no ] || peer=(--pytorch full)

case $what in
  attention | nodes)
    [ "$device" = gpu ] || die "--device cpu is for training, million and longest"
    two=$((nodes > 2 ? nodes : 2))
    [ $((ranks % two)) -eq 0 ] || die "$ranks ranks cannot be dealt to $two nodes: give another number of ranks"
    ;;
esac
case $what in
  attention)
    if [ "$nodes" -eq 1 ]; then attention attention-1-node 1 3 "$tokens" $((2 * tokens)) $((4 * tokens)); fi
    attention "attention-$two-nodes" "$two" 3 "$tokens"
    ;;
  nodes)
    attention "nodes-$two" "$two" 3 "$tokens" $((2 * tokens))
    attention "nodes-$two-longest" "$two" 1 $((4 * tokens))
    ;;
  training)
    training training-T --steps 3 --tokens "$tokens" --case "$selective" ${peer[@]+"${peer[@]}"}
    training training-2T --steps 3 --tokens $((2 * tokens)) --case "$(offloaded 1)" ${peer[@]+"${peer[@]}"}
    training training-4T --steps 2 --tokens $((4 * tokens)) --case "$(offloaded 1)"
    training training-2T-on-the-GPU --steps 2 --tokens $((2 * tokens)) --case "$selective"
    ;;
  million) training million --steps 2 --tokens $((8 * tokens)) --case "$selective" ;;
  longest) training longest --steps 1 --tokens $((1400000 * tokens / 131072)) --case "$(offloaded 0.3)" ;;
esac
for name in "${tables[@]}"; do
  if [ -f "$out/$name.md" ]; then printf '### %s\n\n' "$name"; cat "$out/$name.md"; echo; fi
done
exit "$status"
