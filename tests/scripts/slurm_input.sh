#!/usr/bin/env bash
# slurm_input.sh ANNULUS-TRAIN: what slurm/ reads (records, configurations, profiles, answers of Slurm and of nodes) stays text: nothing in it is
# run, names keep their characters, and damage is passed over or refused. Requests that Slurm would queue for ever are refused.
# Slurm and most programs are stand-ins.
# shellcheck disable=SC2016  # the scripts expand it, or must not
set -euo pipefail
train=$1
slurm=$PWD/slurm
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
out=$scratch/out
fail() { echo "FAILED: $*" >&2; [ ! -f "$out" ] || cat "$out" >&2; exit 1; }
mkdir "$scratch/bin" "$scratch/tmp"
cd "$scratch"
stand_in() { { echo '#!/usr/bin/env bash'; cat; } >"$scratch/bin/$1"; chmod +x "$scratch/bin/$1"; }
attack='nodes[$(touch '$scratch'/pwned)]'
harmless() { [ ! -e "$scratch/pwned" ] || fail "$1: text was run as a command"; }
# in_job COMMANDS ARGUMENTS…: in a shell with the parts of a batch script.
in_job() {
  env PATH="$scratch/bin:$PATH" TMPDIR="$scratch/tmp" slurm="$slurm" SLURM_JOB_ID=17 ANNULUS_BIN="$scratch/bin" ANNULUS_SITE_PROFILE="${profile-}" bash -c '
    set -euo pipefail
    for part in job launch check segments; do . "$slurm/lib/$part.sh"; done
    '"$1" bash "${@:2}" >"$out" 2>&1
}
says() { grep -qF -- "$1" "$out" || fail "should say '$1'"; }
stand_in scontrol </dev/null
stand_in sinfo </dev/null
stand_in srun <<'SH'
[ "$1" != --mpi=list ] || { echo pmix; exit; }
while [[ $1 == -* ]]; do shift; done
"$@"
[ ! -f answers ] || sed "s/^/$(hostname -s) /" answers
SH
stand_in annulus-topology <<'SH'
[ "$1" != --exec ] || { while [ "$1" != -- ]; do shift; done; shift; exec "$@"; }
echo "ANNULUS_NODES=1 ANNULUS_NODELIST=$(hostname -s) ANNULUS_SWITCHES= ANNULUS_RANKS_PER_NODE=1 ANNULUS_ALL_RANKS=1 ANNULUS_CPUS_PER_RANK=1 ANNULUS_CPU_BIND=none ANNULUS_DISTRIBUTION=block"
SH

# --- run.folder, as annulus-train prints it ---
for name in 'plain' "it's" 'a "b"' 'a  # b' 'back\slash\n' "all'\"# \\" 'é' '$(touch pwned)' '-rf'; do
  in_job 'profile_file=""; config=$("$2" --print-config --set "run.folder=$3"); read_folder; printf "%s\n" "$folder"' \
    none "$train" "$name" || fail "run.folder = $name"
  [ "$(cat "$out")" = "${name/#-/./-}" ] || fail "run.folder = $name is read as $(cat "$out")"
done
for name in $'two\nlines' $'end\n' $'esc\e[1m'; do
  if in_job 'config=$("$2" --print-config --set "run.folder=$3"); read_folder' none "$train" "$name"; then fail "control characters are accepted"; fi
  says "holds control characters"
done
harmless run.folder

# --- what nodes answer ---
stand_in annulus-train <<<'echo annulus-train 0'
check='begin_job; plan_launch; check_nodes "$(program annulus-train)" "$2"'
echo "free $attack" >answers
rm -f bin/df; stand_in df <<<'exit 1'  # so that the answer above is the only one
in_job "$check" none "$scratch/run" || fail "check_nodes"
harmless "free space"
rm -f answers bin/df
# GNU df, where what is mounted has a blank in its name.
stand_in df <<'SH'
case " $* " in
  *" --output=avail "*) printf '    Avail\n%s\n' "$FREE" ;;
  *) printf 'Filesystem 1024-blocks Used Available Capacity Mounted on\n//server/our share 9 1 %s 1%% /x\n' "$FREE" ;;
esac
SH
FREE=99999 in_job "$check" none "$scratch/run" || fail "free space of a mount with a blank in its name"
if FREE=2048 in_job "$check" none "$scratch/run"; then fail "too little space is accepted"; fi
says "has 2 MiB left"
rm bin/df

# --- records of segments ---
mkdir job
config() { printf '[run]\nfolder = "%s"\nstop_within = 0\n[data]\nsequence_length = 8\n[train]\nmicro_batches = %s\nsequences_per_pass = 1\n[parallel]\ncontext = 0\nshard = 0\n' "$scratch/job" "${1:-2}"; }
config >config.txt
stand_in annulus-train <<'SH'
case " $* " in *" --print-config "*) cat config.txt ;; *) echo '{"finished": true}' >job/summary.json; echo "trains with $*" ;; esac
SH
job() { env PATH="$scratch/bin:$PATH" TMPDIR="$scratch/tmp" ANNULUS_SLURM="$slurm" SLURM_JOB_ID=18 ANNULUS_BIN="$scratch/bin" ANNULUS_SITE_PROFILE="" bash "$slurm/train.sbatch" run.toml >"$out" 2>&1; }
mkdir -p job/checkpoints/step-00000001
{ echo '{"event":"start","time":"t","job":1,"restart":0,"step":0,"nodes":["a"],"ranks":1,"sequences":4,"reason":""}'
  echo '{"event":"start","time":"t","job":1,"restart":0,"step":0,"nodes":["a"],"ranks":1,"sequences":"'"$attack"'","reason":""}'
  printf "%s\n" '{"event":"end","time":"t","job":1,"restart":0,"step":0,"reason":"cancelled, or \"out\" of \\time","status":0}'; } >job/segments.jsonl
job || fail "train.sbatch with a damaged record"
harmless "segments.jsonl"
says "so that an optimizer step reads 4 sequences as before"
says 'cancelled, or "out" of \time'
python3 -c 'import json, sys; [json.loads(line) for line in open("job/segments.jsonl").readlines()[3:]]' || fail "the record is no JSON: $(cat job/segments.jsonl)"
config "$attack" >config.txt
if job; then fail "a configuration with an expression is accepted"; fi
harmless "configuration"

# --- slurm/status on damaged records ---
mkdir -p broken/checkpoints
touch broken/config.toml
status() { "$slurm/status" broken >"$out" 2>&1 || fail "slurm/status ends with $?"; ! grep -q Traceback "$out" || fail "slurm/status: $1"; }
{ echo '[]'; echo 5; echo 'null'; echo '{"event": 1}'; echo '{"event":"start"}'; echo '{"step":0,"tokens":0,"loss":null,"step_seconds":0}'
  echo '{"step":"3","tokens":[],"loss":1,"step_seconds":1}'; echo '{"step":NaN,"tokens":1,"loss":1,"step_seconds":1e400}'
  echo "{\"step\":1$(printf '0%.0s' {1..400}),\"tokens\":1,\"step_seconds\":1}"; printf '[%.0s' {1..100000}; echo
  printf '\xff\xfe\x00\n'; echo '{"event":"start","time":"t","step":1,"nodes":3,"reason":"\u001b[31mred"}'
  printf '{"event":"end","time":"t","step":1,"rea'; } >broken/metrics.jsonl
cp broken/metrics.jsonl broken/segments.jsonl
status "damaged records"
says "step         0"
says "lines of broken/segments.jsonl are damaged"
! grep -q $'\e' "$out" || fail "control characters reach the terminal"
printf '\n%s\n' '{"step":4,"tokens":8,"loss":null,"step_seconds":1.5,"steps":20}' >>broken/metrics.jsonl
status "damaged records, then a good one"
says "step         4 of 20 (20.0%), 8 tokens"
rm broken/metrics.jsonl broken/config.toml
mkfifo broken/metrics.jsonl broken/config.toml
status "pipes in the place of files"

# --- requests that Slurm would queue for ever, and profiles ---
stand_in sbatch <<<'echo 7'
stand_in sinfo <<'SH'
case "$*" in
  *%c*) printf 'batch* 8\nbatch* 8\n' ;;
  *%l*) echo 'batch* 1-00:00:00' ;;
  *%s*) echo 'batch* 1-3' ;;
  *) echo 'batch* 4' ;;
esac
SH
echo >run.toml
submit() { env PATH="$scratch/bin:$PATH" ANNULUS_SITE_PROFILE="${profile-cpu}" "$slurm/submit" "$@" >"$out" 2>&1; }
refuses() { local text=$1; shift; if submit "$@"; then fail "submit $* is accepted"; fi; says "$text"; harmless "submit $*"; }
refuses "--ntasks-per-node=4 and --cpus-per-task=8 take 32 CPUs of a node, and the nodes of the partition of default have at most 8" train run.toml
refuses "take 16 CPUs" --cpus-per-task=4 train run.toml
refuses "take 16 CPUs" -c 4 train run.toml
refuses "gives a job at most 1-00:00:00" --ntasks-per-node=1 --time=1-00:01 train run.toml
refuses "gives a job at most 1-00:00:00" --ntasks-per-node=1 -t 1441 train run.toml
refuses "gives a job at most 3 nodes" --ntasks-per-node=1 --nodes 4 train run.toml
refuses "--nodes needs a value" --nodes
refuses "give a number of jobs" --chain 08 train run.toml
submit --ntasks-per-node=2 --cpus-per-task=4 --time=1-0 --nodes=3 train run.toml || fail "a request that fits"
says "job 7"
# Options in two words, also where submit looks at them, and those without a value.
submit --dry-run --ntasks-per-node 2 --time 1-0 --exclusive --comment train train run.toml && fail "an option that takes the template for its value"
submit --dry-run --ntasks-per-node 2 --cpus-per-task 4 --time 1-0 --exclusive train run.toml || fail "options in two words"
says "--ntasks-per-node=2 --cpus-per-task=4 --time=1-0 --exclusive "
refuses "gives a job at most 1-00:00:00" --ntasks-per-node 1 --time 2-0 train run.toml
# What is queued is told, wherever standard output leads.
if env PATH="$scratch/bin:$PATH" ANNULUS_SITE_PROFILE="" "$slurm/submit" --ntasks-per-node=1 --chain 2 train run.toml 2>"$out" >/dev/full; then
  fail "standard output that cannot be written is no error"
fi
[ "$(grep -c "could not be written: job 7" "$out")" -eq 2 ] || fail "the jobs of a chain"
submit --nodes=2-3 train run.toml || fail "whole nodes"
printf "[node]  # of\ncores = 8  # all\n[ranks]\n  'per_node' = 2\n[network]\nkind = 'ethernet'\n" >good.toml
profile=$scratch/good.toml submit --dry-run --time=60 train run.toml || fail "a profile that fits"
says "--ntasks-per-node=2 --cpus-per-task=4"
profile=$scratch/good.toml in_job 'read_site; profile_value network kind' || fail "profile_value"
says ethernet
printf '[node]\ncores = "%s"\n[ranks]\nper_node = 2\n' "$attack" >bad.toml
profile=$scratch/bad.toml refuses "[node] cores = nodes[" train run.toml
ANNULUS_RANKS=1+$attack refuses "ranks = '1+nodes[" train run.toml
# Without Slurm, its command can be shown.
rm bin/sbatch bin/sinfo
mkdir tools
for tool in bash env sed awk dirname basename grep cat tr hostname xargs head tail rm mktemp; do ln -s "$(command -v "$tool")" tools/; done
without=$scratch/tools
PATH=$without submit --dry-run --nodes 2 train run.toml || fail "--dry-run without sbatch"
says "slurm/train.sbatch run.toml"
if PATH=$without submit train run.toml; then fail "submitted without sbatch"; fi
says "no sbatch here"
echo "text stays text"
