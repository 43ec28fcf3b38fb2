# shellcheck shell=bash
# What ./annulus and the installed launcher share: which build a machine can run, and programs on MPI ranks. Both define
# program_of BUILD PROGRAM (its path), how_to_get BUILD (what the user does to have that build) and presets (the names of builds).

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
die() { printf 'annulus: %s\n' "$*" >&2; exit 1; }
show() { printf '%s\n' "$1" 2>/dev/null || die "standard output could not be written: what was printed is not all there; give it another place"; }

# --- the build that a machine can run -------------------------------------------------------------------------

# Programs of the build cuda are linked with the driver's library: without it the system does not even start them.
has_driver() {
  local folders folder
  PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep 'libcuda\.so\.1' >/dev/null && return
  IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
  for folder in "${folders[@]}"; do
    [ ! -e "$folder/libcuda.so.1" ] || return 0
  done
  return 1
}
# A GPU that this process may open: a batch system hides those of others. ANNULUS_GPU_DEVICES stands in for them in tests.
has_gpu() {
  local device
  [ "${CUDA_VISIBLE_DEVICES-all}" != "" ] && [ "${CUDA_VISIBLE_DEVICES-all}" != -1 ] || return 1
  # shellcheck disable=SC2086  # a pattern
  for device in ${ANNULUS_GPU_DEVICES:-/dev/nvidia[0-9]* /dev/dxg}; do
    if (: <"$device") 2>/dev/null; then return 0; fi
  done
  return 1
}
# The driver of AMD's GPUs has one file for all, which a batch system lets open; it hides GPUs by variables.
has_amd_gpu() {
  [ "${ROCR_VISIBLE_DEVICES-all}" != "" ] && [ "${HIP_VISIBLE_DEVICES-all}" != "" ] || return 1
  (: <"${ANNULUS_AMD_DEVICE:-/dev/kfd}") 2>/dev/null
}
require_driver() {  # PROGRAM [WHAT TO DO]
  has_driver || die "$1 of the preset cuda needs an NVIDIA GPU, and this machine has no driver for one (libcuda.so.1): ${2:-use --preset cpu}"
}

# The system finds all libraries of the program.
can_start() { [ -x "$1" ] && ! ldd "$1" 2>/dev/null | grep 'not found' >/dev/null; }

# What keeps a program of a build for GPUs from running here; nothing where it can.
obstacle() {  # cuda|hip PROGRAM
  if [ ! -x "$(program_of "$1" "$2")" ]; then
    echo "$2 is not there for GPUs"
  elif [ "$1" = cuda ] && ! has_driver; then
    echo "this machine has no NVIDIA driver (libcuda.so.1)"
  elif [ "$1" = cuda ] && ! has_gpu; then
    echo "this machine has no NVIDIA GPU that may be used"
  elif [ "$1" = hip ] && ! can_start "$(program_of hip "$2")"; then
    echo "this machine lacks libraries of ROCm"
  elif [ "$1" = hip ] && ! has_amd_gpu; then
    echo "this machine has no AMD GPU that may be used"
  fi
}

# pick_build PROGRAM: sets `picked` to cuda or hip where PROGRAM is there for GPUs and this machine has one, to cpu otherwise, and
# `why`. What is there for GPUs alone is taken if it starts: not every program needs one. ANNULUS_BUILD decides where it is set.
pick_build() {
  local gpu lacks
  picked=cpu why=""
  if [ -n "${ANNULUS_BUILD:-}" ]; then
    picked=$ANNULUS_BUILD why="ANNULUS_BUILD says so"
    [ "$picked" != cuda ] || require_driver "$1" "unset ANNULUS_BUILD, or set it to cpu"
    return
  fi
  for gpu in hip cuda; do  # the last one that is there says why it is not taken
    lacks=$(obstacle $gpu "$1")
    if [ -z "$lacks" ]; then
      picked=$gpu why="this machine has an $([ $gpu = cuda ] && echo NVIDIA || echo AMD) GPU"
      return
    fi
    [ -n "$why" ] && [ ! -x "$(program_of $gpu "$1")" ] || why=$lacks
  done
  [ ! -x "$(program_of cpu "$1")" ] || return 0
  for gpu in hip cuda; do
    if can_start "$(program_of $gpu "$1")"; then picked=$gpu why="$why, but $1 is there for GPUs alone"; return; fi
  done
}

# --- MPI ------------------------------------------------------------------------------------------------------

# mpi_run RANKS PROGRAM ARGUMENTS: Open MPI refuses root and more ranks than cores unless told otherwise; both are normal
# in containers and on laptops. Signals that ask to stop reach the ranks as SIGUSR1, which mpirun hands on at once and
# annulus-train answers by saving; SIGTERM and SIGINT would make mpirun end its ranks on a clock of its own. So mpirun gets
# a session of its own, out of reach of the terminal's Ctrl-C. A second signal ends all ranks without saving. The file of
# ANNULUS_STOP_CAUSE tells the ranks of this machine which signal it was.
mpi_run() {
  local ranks=$1 flags=() job status=0 stops=0 name log logger="" output printer; shift
  ANNULUS_STOP_CAUSE=$(mktemp "${TMPDIR:-/tmp}/annulus-stop.XXXXXX") || die "no file could be made in ${TMPDIR:-/tmp}: set TMPDIR to a folder with room"
  export ANNULUS_STOP_CAUSE
  export ANNULUS_DRIVER=${ANNULUS_DRIVER:-$0}  # for commands that programs suggest
  if mpirun --version 2>/dev/null | grep -qi 'open mpi\|open-mpi'; then
    flags=(-q --oversubscribe --bind-to none)  # -q: what mpirun would say after a rank's own message is no help
    [ "$(id -u)" -eq 0 ] && flags+=(--allow-run-as-root)
  fi
  # mpirun does not tell whether what ranks print could be written, and ends where the reader of its log has gone away. So
  # others write, who read on. On a terminal ranks look for mpirun's own log (io::ProgressLine).
  if [ -t 2 ]; then
    exec {log}>&2
  else
    exec {log}> >(trap '' INT TERM HUP USR1 XCPU; cat >&2 || cat >/dev/null)
    logger=$!
  fi
  exec {output}> >(trap '' INT TERM HUP USR1 XCPU; written=0; cat || written=$?; [ $written -eq 0 ] || cat >/dev/null; exit $written)
  printer=$!
  setsid mpirun "${flags[@]}" -n "$ranks" "$@" </dev/null 1>&"$output" 2>&"$log" &
  job=$!
  exec {output}>&- {log}>&-
  trap : PIPE
  for name in INT TERM HUP USR1 XCPU; do
    # shellcheck disable=SC2064  # the name is that of now
    trap "stop_ranks SIG$name" "$name"
  done
  while kill -0 $job 2>/dev/null; do
    status=0
    wait $job || status=$?
  done
  trap - INT TERM HUP USR1 XCPU PIPE
  rm -f "$ANNULUS_STOP_CAUSE"
  if [ $status -gt 128 ] && [ $stops -gt 0 ]; then  # maybe the status of the wait that the trap ended
    local again=0
    wait $job 2>/dev/null || again=$?
    [ $again -eq 127 ] || status=$again
  fi
  local printed=0
  wait "$printer" || printed=$?
  [ -z "$logger" ] || wait "$logger" || true
  case $printed in
    0) ;;
    141) [ $status -ne 0 ] || status=141 ;;  # SIGPIPE: the reader has seen enough
    *) printf 'annulus: standard output could not be written: what was printed is not all there\n' >&2 || true
       [ $status -ne 0 ] || status=1 ;;
  esac
  return $status
}
# What mpi_run does about a signal.
stop_ranks() {
  stops=$((stops + 1))
  if [ $stops -eq 1 ]; then
    echo "$1" >"$ANNULUS_STOP_CAUSE" || true
    kill -USR1 "$job" 2>/dev/null || true
  else
    { kill -TERM "$job"; kill -TERM "$job"; } 2>/dev/null || true
  fi
}

# Any program on N ranks; those of Annulus by name, from the build of a preset, or from the one that this machine can run.
run_program() {
  local preset="" ranks program picked why
  if [ "${1:-}" = --preset ]; then
    [ $# -ge 2 ] || die "--preset needs a name"
    preset=$2
    shift 2
    [[ " $(presets) " == *" $preset "* ]] || [ -d "$(program_of "$preset" .)" ] || die "run: there is no preset '$preset' (known: $(presets))"
  fi
  [ $# -ge 2 ] || die "run needs a number of ranks and a program (see: ${ANNULUS_DRIVER:-$0} help)"
  [[ $1 =~ ^[1-9][0-9]*$ ]] || die "run $1: give a positive number of ranks"
  ranks=$1 program=$2
  shift 2
  if [ -z "$preset" ] && [[ $program == annulus-* ]]; then
    pick_build "$program"
    preset=$picked
    [ ! -x "$(program_of "$preset" "$program")" ] || say "$program of the build $preset: $why" >&2
  fi
  preset=${preset:-cpu}
  [[ $program == */* ]] || [ ! -x "$(program_of "$preset" "$program")" ] || program=$(program_of "$preset" "$program")
  command -v "$program" >/dev/null || die "run: there is no program $program ($(how_to_get "$preset"))"
  [ "$preset" != cuda ] || require_driver "$program"
  mpi_run "$ranks" "$program" "$@"
}
