#!/usr/bin/env bash
# The launcher of all templates: how many ranks, where, with which cores and NICs, started by what. Sourced after job.sh.
# shellcheck disable=SC2034,SC2154

# What annulus-topology makes of the job (docs/topology.md): nodes in an order that goes through each switch once, ranks per node, logical
# CPUs per rank. ranks = gpu, node or a number (site.conf, ANNULUS_RANKS) goes over --ntasks-per-node.
plan_ranks() {
  local gpus=${SLURM_GPUS_ON_NODE:-0} given=$ranks
  [[ $gpus =~ ^[0-9]+$ ]] || gpus=0
  case $ranks in
    gpu) [ "$gpus" -gt 0 ] || refuse "ranks = gpu, and this job has no GPUs: sbatch --gpus-per-node=N, or ranks = node"
         given=$gpus ;;
    node) given=1 ;;
    *) [[ $ranks =~ ^([1-9][0-9]*)?$ ]] || refuse "ranks = '$ranks': give gpu, node or a number of ranks a node" ;;
  esac
  private_folder
  placing=(--launch --hostfile "$private/nodes")
  [ -z "$given" ] || placing+=(--ranks-per-node "$given")
  [ -z "$profile_file" ] || placing+=(--profile "$profile_file")
  place 0
  IFS=, read -ra nodes <<<"$ANNULUS_NODELIST"
  IFS=, read -ra switches <<<"$ANNULUS_SWITCHES"
  per_node=$ANNULUS_RANKS_PER_NODE cpus=$ANNULUS_CPUS_PER_RANK
}
# place COUNT: for ranks on so many of the nodes; 0: on all.
place() {
  local plan
  plan=$("$topology_program" "${placing[@]}" --nodes "$1") || refuse "nothing was started: see above"
  eval "$plan"  # annulus-topology quotes what it has from others
  [[ $ANNULUS_NODELIST =~ ^[A-Za-z0-9._,-]+$ ]] || refuse "Slurm names nodes of this job as $(printf %q "$ANNULUS_NODELIST"): letters, digits, '.', '_' and '-' make a host's name"
}

# srun where Slurm and the programs' MPI meet in PMIx, else mpirun inside the allocation.
choose_launcher() {
  local offered; offered=$(srun --mpi=list 2>&1 || true)
  case $mpi in
    auto) if grep -qw 'pmix[_v0-9]*' <<<"$offered"; then launcher=pmix
          elif command -v mpirun >/dev/null; then launcher=mpirun
          else refuse "this Slurm offers no PMIx (srun --mpi=list: $(tail -n +2 <<<"$offered" | xargs)) and there is no mpirun in PATH on $(hostname): load the MPI that Annulus was built with in prepare() of $slurm/site.conf, or set mpi there to one of that list which your MPI knows"; fi ;;
    mpirun) command -v mpirun >/dev/null || refuse "mpi = mpirun, and there is no mpirun in PATH on $(hostname): load MPI in prepare() of $slurm/site.conf"
            launcher=mpirun ;;
    *) grep -qwF -- "$mpi" <<<"$offered" || refuse "mpi = $mpi is not what this Slurm offers (srun --mpi=list: $(tail -n +2 <<<"$offered" | xargs)): take one of these, or mpi = mpirun"
       launcher=$mpi ;;
  esac
}

# What holds for all ranks alike. NICs, cores and memory are each rank's own: annulus-topology sets them (rank.sh), and says so.
choose_network() {
  set_variables=()
  if [ "$(profile_value network kind)" = ethernet ]; then
    set_to OMPI_MCA_pml ob1
    set_to OMPI_MCA_btl self,vader,tcp
    set_to NCCL_IB_DISABLE 1
  fi
}
# set_to NAME VALUE: exports it unless the user or the site has; an empty value sets nothing.
set_to() {
  [ -n "$2" ] && [ -z "${!1+set}" ] || return 0
  export "$1=$2"
  set_variables+=("$1=$2")
}

plan_launch() {
  topology_program=$(program annulus-topology)
  plan_ranks
  choose_launcher
  choose_network
  # mpirun itself gets SIGTERM from Slurm, and would kill the ranks a second later.
  export OMPI_MCA_odls_base_sigkill_timeout=${OMPI_MCA_odls_base_sigkill_timeout:-20}
  [ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  say "nodes: ${nodes[*]}${switches[*]+, below ${switches[*]}}$([ "$ANNULUS_DISTRIBUTION" != arbitrary ] || echo "; reordered so that those of a switch are neighbours")"
  say "ranks: $per_node on each node, consecutive (block); $cpus logical CPUs each, bound by annulus-topology"
  say "GPUs of a node: ${SLURM_GPUS_ON_NODE:-0}${SLURM_JOB_GPUS:+ (indices $SLURM_JOB_GPUS)}"
  say "profile: ${profile_file:-none}; set for all ranks: ${set_variables[*]-nothing}; rank by rank: below, of rank 0"
  say "started by: $([ "$launcher" = mpirun ] && command -v mpirun || echo "srun --mpi=$launcher")"
}

# start COUNT PROGRAM ARGUMENTS…: ranks on the first COUNT nodes, in the background; $launched is the process to signal and to
# wait for.
start() {
  local rank=("$slurm/lib/rank.sh" "$topology_program" "$profile_file" "${@:2}")
  [ "$ANNULUS_NODES" -eq "$1" ] || place "$1"
  if [ "$launcher" = mpirun ]; then start_mpirun; else start_srun; fi
  launched=$!
  [ -z "$signalled" ] || kill -USR1 "$launched"
}
start_mpirun() {
  mpirun -q --host "${ANNULUS_NODELIST//,/:$per_node,}:$per_node" -n "$ANNULUS_ALL_RANKS" \
    --map-by "ppr:$per_node:node" --bind-to none --oversubscribe "${rank[@]}" &
}
start_srun() {
  local flags=(--mpi="$launcher" --nodes="$ANNULUS_NODES" --ntasks="$ANNULUS_ALL_RANKS" --cpus-per-task="$cpus" --cpu-bind="$ANNULUS_CPU_BIND"
    --distribution="$ANNULUS_DISTRIBUTION" --kill-on-bad-exit=1)
  if [ "$ANNULUS_DISTRIBUTION" = arbitrary ]; then
    SLURM_HOSTFILE=$ANNULUS_HOSTFILE srun "${flags[@]}" "${rank[@]}" &
  else
    srun "${flags[@]}" --ntasks-per-node="$per_node" --nodelist="$ANNULUS_NODELIST" "${rank[@]}" &
  fi
}

# The status of what was started. Signals go on to the ranks at once; a trap does no more, since a process that it started would
# die of the next signal. $signalled is the last one that came.
signalled=${signalled:-}
pass_on_signals() {
  trap 'signalled=USR1; [ -z "${launched:-}" ] || kill -USR1 "$launched" 2>/dev/null || true' USR1
  trap 'signalled=TERM; [ -z "${launched:-}" ] || kill -USR1 "$launched" 2>/dev/null || true' TERM
}
await() {
  local again=0 reminder=""
  while :; do
    status=0
    wait "$launched" || status=$?
    if [ -n "$signalled" ]; then
      [ -n "$reminder" ] || { remind "$launched" & reminder=$!; }
      signal_came
    fi
    kill -0 "$launched" 2>/dev/null || break
  done
  [ -z "$reminder" ] || kill "$reminder" 2>/dev/null || true
  wait "$launched" 2>/dev/null || again=$?
  [ "$again" -eq 127 ] || status=$again
}
signal_came() { :; }  # templates may do more
# A signal that comes while ranks are being started finds nobody who listens: it is sent again until they have ended.
remind() { while sleep 5 && kill -USR1 "$1" 2>/dev/null; do :; done; }

# run COUNT PROGRAM ARGUMENTS…: in the foreground.
run() { start "$@"; await; return "$status"; }
