# shellcheck shell=bash disable=SC2154
# Fuzzing (docs/debugging.md). Sourced by ./annulus, which sets `root` and defines build.

# The fuzz targets: each has a folder of inputs.
fuzz_targets() { local folder; for folder in "$root"/tests/fuzz/corpus/*/; do basename "$folder"; done; }

# libFuzzer comes with clang. Other compilers build the same targets with a driver of Annulus' own.
has_libfuzzer() {
  command -v clang++ >/dev/null &&
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null
}

fuzz() {
  local known target targets=() seconds=${2:-60}
  known=$(fuzz_targets | paste -sd' ')
  [ $# -eq 1 ] || [ $# -eq 2 ] || die "fuzz: name a target and, if you like, seconds: ./annulus fuzz TARGET [SECONDS]; targets are all, $known"
  [[ $seconds =~ ^[1-9][0-9]*$ ]] || die "fuzz: '$seconds' is no number of seconds"
  for target in $known; do
    [ "$1" != all ] && [ "$1" != "$target" ] || targets+=("$target")
  done
  [ ${#targets[@]} -gt 0 ] || die "fuzz: there is no target '$1'; targets are all, $known"
  setup
  build fuzz "${targets[@]/#/fuzz_}"
  say "fuzzing ${targets[*]} for $seconds s each"
  # As many at once as there are cores.
  export -f fuzz_one
  printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one "$@"' bash "$root" {} "$seconds" ||
    die "fuzz: an input ended a program: see above"
}

# fuzz_one ROOT TARGET SECONDS. What it finds that takes new ways through the code is where the next call starts from.
fuzz_one() {
  local folder=$1/build/fuzz/found/$2 failure=$1/build/fuzz/failures/$2- log=$1/build/fuzz/$2.log
  mkdir -p "$folder" "${failure%/*}"
  if "$1/build/fuzz/bin/fuzz_$2" -max_total_time="$3" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 \
      -artifact_prefix="$failure" "$folder" "$1/tests/fuzz/corpus/$2" >"$log" 2>&1; then
    echo "$2: $(sed -n 's/^stat::number_of_executed_units: *//p; s/ inputs, .*//p' "$log") inputs, none ended the program"
  else
    tail -n 40 "$log" >&2
    echo "$2: the input is in $failure*; again with it: $1/build/fuzz/bin/fuzz_$2 FILE" >&2
    return 1
  fi
}
