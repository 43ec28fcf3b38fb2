# shellcheck shell=bash disable=SC2154
# ./annulus check: compiles a few sources for GPUs on a machine without one. Sourced by ./annulus, which sets `root` and `deps`.

# Code of each kind through nvcc: kernels, tensor cores, vector code of the host, and what calls CUDA's libraries. Kokkos itself is
# not built: its headers do.
check_cuda_sources=(
  src/base/kokkos/{memory/device_pool,execution/event}.cpp
  src/attention/kernels/mma/{forward_bf16,backward_bf16,gathered_bf16}.cpp
  annulus_kernels_hopper  # a target: all of its sources, most of which configuring makes
  src/attention/kernels/host_simd/pointwise.cpp
  src/training/model/ops/gated.cpp
  src/training/linalg/cublaslt.cpp
  src/attention/comm/nccl/{nccl,peer_copies}.cpp
)
# All that differs on AMD's GPUs, and kernels of Kokkos of each kind.
check_hip_sources=(
  src/base/kokkos/{memory/device_pool,memory/pinned,execution/event,execution/start,execution/processor}.cpp
  src/attention/comm/{gpu_ids,mpi/communicator,nccl/link,nccl/nccl,nccl/paths,nccl/no_peer_copies}.cpp
  src/attention/kernels/{local,scores,portable/bf16,host_simd/pointwise}.cpp
  src/prediction/emulator/spin.cpp
  src/training/linalg/{hipblas,matmul}.cpp
  src/training/model/ops/gated.cpp
  src/training/loss/lm_head.cpp
  src/training/optimizer/adamw.cpp
  apps/bench/attention/local/ring_steps.cpp
)
# What ptxas says of the kernels for Hopper must not be: products made one after the other or setmaxnreg ignored (C7508 to
# C7514), and more bytes of registers in memory than with CUDA 13's ptxas, in multiples of 16. Those are registers of the producer,
# which nobody waits for, and a few of the consumers where tiles are as large as registers allow.
check_hopper() {  # LOG
  local wrong=""
  if grep -E 'C75(08|1[0-4])' "$1" >&2; then wrong="ptxas gives up the overlap that the kernels for Hopper live by"; fi
  awk -F"'" '
    function limit(kernel) {
      if (kernel ~ /15backward_kernel.*BackwardTileILi64ELb1ELi3E/) return 144  # three consumers: 128 registers a thread
      if (kernel ~ /15backward_kernel.*BackwardTileILi128E/) return 32
      if (kernel ~ /14forward_kernel.*ForwardTileILi256ELi2ELi80E/) return 112  # O alone takes 128 of 232
      if (kernel ~ /14forward_kernel.*ForwardTileILi64ELi4E/) return 32         # four consumers: 96 registers a thread
      if (kernel ~ /14forward_kernel.*TileFormE1E.*ForwardTileILi128ELi2E/) return 16  # clipped: the number of columns as well
      if (kernel ~ /19key_gradient_kernel.*BackwardTileILi(64|96|256)E.*ELb1E/) return 64  # block lists of heads
      return 0
    }
    /Compiling entry function/ { kernel = $2 }
    /bytes spill stores/ {
      split($0, word, " ")  # 0 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
      if (word[5] > limit(kernel) || word[9] > limit(kernel)) { print kernel ":" $0 ", at most " limit(kernel); failed = 1 }
    }
    END { exit failed }' "$1" >&2 || wrong="kernels for Hopper have more of their registers in memory than their limits"
  [ -z "$wrong" ] && return
  rm -r "$root/build/check-cuda/src/attention/kernels/CMakeFiles/annulus_kernels_hopper.dir"  # so that the next check looks again
  die "the check failed: $wrong (above)"
}
check() {
  case $* in
    cuda) compile_some cuda "${check_cuda_sources[@]}"; check_hopper "$deps/check-cuda.log" ;;
    hip) compile_some hip "${check_hip_sources[@]}" ;;
    *) die "check: say what: ./annulus check cuda, or ./annulus check hip" ;;
  esac
  say "they compile"
}
compile_some() {  # PRESET SOURCES
  local preset=$1 folder=$root/build/check-$1 objects=() source; shift
  setup
  configure "$preset" "check-$preset" -DANNULUS_UNITY=OFF
  say "compiling $# sources for GPUs"
  ninja -C "$folder" build.ninja >>"$deps/configure-$preset.log" 2>&1 || die "configuring failed ($deps/configure-$preset.log)"
  for source; do
    [[ $source == */* ]] || { objects+=("$source"); continue; }
    [ -f "$root/$source" ] || die "check_${preset}_sources names $source, which is gone"
    if grep -qF "$root/$source" "$folder/build.ninja"; then
      objects+=("$root/$source^")  # what ninja makes of it
    else
      say "not $source: this build does without it ($deps/configure-$preset.log says what was found)"
    fi
  done
  local log=$deps/check-$preset.log status=0
  ninja -C "$folder" -j "${ANNULUS_JOBS:-$(nproc)}" "${objects[@]}" >"$log" 2>&1 || status=1
  grep -v '^ptxas info\|bytes stack frame\|^$' "$log" || true
  [ $status -eq 0 ] || die "the check failed: the first error stands above"
}
