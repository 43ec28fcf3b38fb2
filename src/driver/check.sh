# shellcheck shell=bash disable=SC2154
# ./annulus check: compiles a few sources for GPUs on a machine without one. Sourced by ./annulus, which sets `root` and `deps`.

# Code of each kind through nvcc: kernels, tensor cores, vector code of the host, and what calls CUDA's libraries. Kokkos itself is
# not built: its headers do.
check_cuda_sources=(
  src/base/kokkos/{memory/device_pool,execution/event}.cpp
  src/attention/kernels/mma/{forward_bf16,backward_bf16,gathered_bf16}.cpp
  src/attention/kernels/hopper/schedule/tile_tables.cu
  build/check-cuda/src/attention/kernels/hopper/{forward,backward}_bfloat16_{64,96,128,256}_whole.cu  # configuring makes them
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
# C7514), and registers in memory. Up to 144 bytes may lie there: those of warps that copy, which
# nobody waits for, and few of the warps that compute.
check_hopper() {  # LOG
  if grep -E 'C75(08|1[0-4])' "$1" >&2; then die "the check failed: ptxas gives up the overlap that the kernels for Hopper live by (above)"; fi
  if awk '/bytes spill stores/ { for (i = 2; i <= NF; ++i) if ($i == "bytes" && $(i + 1) == "spill" && $(i - 1) > 144) bad = 1 } END { exit !bad }' "$1"; then
    grep -B1 'bytes spill stores' "$1" >&2
    die "the check failed: a kernel for Hopper has more than 144 bytes of its registers in memory (above)"
  fi
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
