#!/usr/bin/env bash
# Bad requests and broken sites: refused by sbatch or by the script's first act, with the remedy.
# shellcheck disable=SC2034,SC2154

# submit_refuses TEXT ARGUMENTS…: slurm/submit says the text, queues nothing and ends with an error.
submit_refuses() {
  local text=$1 output; shift
  if output=$(on_login slurm/submit "$@" 2>&1); then fail "submit $*: was not refused: $output"; fi
  grep -qF -- "$text" <<<"$output" || fail "submit $*: should say '$text', says: $output"
}
# job_asks NAME TEXT SBATCH-OPTIONS… -- ARGUMENTS…: submits a job that is to fail before anything is started, and to say the text.
declare -A asked texts
job_asks() {
  local name=$1; texts[$1]=$2; shift 2
  train "$name" "$@"
  asked[$name]=$job
}
# refused: all of these have done so.
refused() {
  local name
  for name in "${!asked[@]}"; do
    log=$work/$name.log
    ends "${asked[$name]}" FAILED
    said "${texts[$name]}"
    ! grep -q '"event":"start"' "$work/$name/segments.jsonl" 2>/dev/null || fail "the run was started"
  done
  asked=()
}

submit_refuses "ask for: compare with sinfo" --nodes=2 --cpus-per-task=1 --gpus-per-node=8 train "$work/run.toml"
submit_refuses "1 leaf switches of this cluster have at most 2 nodes, and 4 are asked for" --nodes=4 --switches=1 train "$work/run.toml"
submit_refuses "Partitions here: batch urgent" --nodes=2 --partition=none train "$work/run.toml"
submit_refuses "the partition of default has 4 nodes" --nodes=9 train "$work/run.toml"
# What Slurm would queue for ever (PartitionConfig): the template's CPUs are more than these nodes have.
ANNULUS_SITE_PROFILE=cpu submit_refuses "take 32 CPUs of a node, and the nodes of the partition of default have at most 8" --nodes=2 train "$work/run.toml"
submit_refuses "there is no such file" --nodes=2 train "$work/none.toml"
submit_refuses "there is no template 'trein'" --nodes=2 trein "$work/run.toml"
ANNULUS_SITE_PROFILE=h200 submit_refuses "known are: a100-8 cpu generic gh200-4 gpu-4 h100-8" --nodes=2 train "$work/run.toml"
if output=$(env -u SLURM_CONF slurm/submit train "$work/run.toml" 2>&1); then fail "submit without a controller"; fi
grep -q "is this a login node" <<<"$output" || fail "submit without a controller says: $output"
if output=$(env -u SLURM_JOB_ID bash slurm/train.sbatch "$work/run.toml" 2>&1); then fail "train.sbatch without Slurm"; fi
grep -q "there is no job here" <<<"$output" || fail "train.sbatch without Slurm says: $output"

ANNULUS_SITE_PROFILE=h100-8 job_asks profile "0 GPUs, but the profile promises 8" --nodes=2
ANNULUS_MPI=pmix_v9 job_asks mpi "mpi = pmix_v9 is not what this Slurm offers" --nodes=2
ANNULUS_RANKS=gpu job_asks ranks "ranks = gpu, and this job has no GPUs" --nodes=2
job_asks configuration "the configuration is refused" --nodes=2 -- --set train.lr=-1
job_asks shard "parallel.shard = 5 does not divide" --nodes=2 -- --set parallel.zero=1 --set parallel.shard=5
job_asks folder "cannot be made" --nodes=2 -- --set run.folder=/proc/run
job_asks private "does not see what" --nodes=2 -- --set run.folder=/dev/shm/run
# Four nodes that are below two switches, when one was asked for and Slurm has given up waiting for it.
job_asks switches "--switches=1 was asked for, and the 4 nodes of this job lie below 2" --nodes=4 --switches=1@0
refused

# What one node has that the others have not. Its own mounts make n2 differ.
cat >"$work/other" <<'TXT'
#!/bin/sh
echo "annulus 0.1.0 (0123456789ab)"
TXT
chmod +x "$work/other"
"$lab" on n2 mount --bind "$work/other" "$bin/annulus-train"
job_asks build "node n2 is another build of annulus-train than the others" --nodes=3 --nodelist=n1,n2,n3
refused
"$lab" on n2 umount "$bin/annulus-train"

cp "$(command -v date)" "$work/date.real"
# shellcheck disable=SC2016
printf '#!/bin/sh\necho $(($(%s +%%s) + 3600))\n' "$work/date.real" >"$work/date"
chmod +x "$work/date"
"$lab" on n3 mount --bind "$work/date" "$(readlink -f "$(command -v date)")"
job_asks clock "node n3 has a clock that is 3" --nodes=3 --nodelist=n1,n2,n3
refused
"$lab" on n3 umount "$(readlink -f "$(command -v date)")"

"$lab" on n2 ip link set hsn1 name old1
job_asks card "node n2 is not what the profile" --nodes=2 --nodelist=n1,n2
refused
"$lab" on n2 ip link set old1 name hsn1
"$lab" on n2 ip link set hsn1 up

# What this machine does not have, answered by programs that come before the real ones: GPUs, drivers, NCCL. $FAKE names what n2 has
# otherwise.
mkdir "$work/fake"
ln -s libnccl.so.2.27.3 "$work/fake/libnccl.so.2"
ln -s libnccl.so.2.20.5 "$work/fake/libnccl.so.2.other"
cat >"$work/fake/ldd" <<SH
#!/bin/bash
[ "\$FAKE" = debug ] || $(command -v ldd) "\$@"
other=
[ "\$FAKE \$(hostname)" != "nccl n2" ] || other=.other
echo "libnccl.so.2 => $work/fake/libnccl.so.2\$other (0x0)"
echo "libcublasLt.so.12 => /usr/local/cuda/lib64/libcublasLt.so.12 (0x0)"
SH
cat >"$work/fake/nvidia-smi" <<'SH'
#!/bin/bash
driver=550.54.15 cuda=12.4 gpu="NVIDIA H100 80GB HBM3"
case "$FAKE $(hostname)" in
  "cuda n2") driver=470.82.01 cuda=11.4 ;;
  "gpus n2") driver=570.86.10 cuda=12.8 gpu="NVIDIA A100-SXM4-80GB" ;;
esac
case $* in
  *driver_version*) echo "$driver" ;;
  *name*) echo "$gpu" ;;
  *) echo "| NVIDIA-SMI $driver    Driver Version: $driver    CUDA Version: $cuda |" ;;
esac
SH
chmod +x "$work/fake/ldd" "$work/fake/nvidia-smi"
{ cat "$work/site.conf"; echo "prepare() { PATH=$work/fake:\$PATH; }"; } >"$work/fake.conf"
(
  export ANNULUS_SITE=$work/fake.conf
  FAKE=nccl job_asks nccl "node n2 loads another NCCL than the others: libnccl.so.2.20.5, not libnccl.so.2.27.3. Load the same module" --nodes=3 --nodelist=n1,n2,n3
  FAKE=cuda job_asks cuda "node n2 has an NVIDIA driver (470.82.01) that runs CUDA 11 at most, and the program was built with CUDA 12. Leave it out (--exclude=n2)" --nodes=3 --nodelist=n1,n2,n3
  FAKE=gpus job_asks gpus "node n2 has other GPUs than the others: 1 NVIDIA A100-SXM4-80GB, not 1 NVIDIA H100 80GB HBM3. Name one node type" --nodes=3 --nodelist=n1,n2,n3
  asked[debug]=$(FAKE=debug on_login sbatch --parsable --output="$work/debug.log" --nodes=2 slurm/cpu-debug.sbatch "$work/run.toml")
  texts[debug]="annulus-train is for GPUs, and this run is for CPUs with all checks: ./annulus build cpu-debug"
  refused
  log=$work/gpus.log
  said "note: NVIDIA drivers differ: n1: 550.54.15; n2: 570.86.10; n3: 550.54.15"
)

# Components of a heterogeneous job, and a node with another processor.
sed 's/^model name.*/model name : Other CPU/' /proc/cpuinfo >"$work/cpuinfo"
"$lab" on n2 mount --bind "$work/cpuinfo" /proc/cpuinfo
job_asks processor "node n2 is another type of node than the others" --nodes=3 --nodelist=n1,n2,n3
job_asks components "is heterogeneous" --nodes=1 : --nodes=1
refused
"$lab" on n2 umount /proc/cpuinfo
