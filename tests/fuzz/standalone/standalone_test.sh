#!/usr/bin/env bash
# standalone_test.sh FUZZ_GOING_WRONG: the stand-alone driver takes what is fine for fine, and keeps the input that ends the program.
set -euo pipefail
target=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; cat "$scratch/out"; exit 1; }
mkdir "$scratch/stored" "$scratch/kept"
run() { "$target" -artifact_prefix="$scratch/kept/" "$@" >"$scratch/out" 2>&1; }

printf refuse >"$scratch/stored/refuse"
printf nothing >"$scratch/stored/nothing"
run -runs=1000 "$scratch/stored" || fail "sound inputs: status $?"
grep -q "^1000 inputs, 2 of them stored: none ended" "$scratch/out" || fail "the report on sound inputs"

for wrong in "refuse without a name" throw abort hang allocate; do
  printf '%s' "$wrong" >"$scratch/input"
  if run -timeout=1 "$scratch/stored" "$scratch/input"; then fail "'$wrong' was not noticed"; fi
  [ "$(cat "$scratch"/kept/crash-*)" = "$wrong" ] || fail "'$wrong' was not kept"
  rm "$scratch"/kept/*
done

printf almost >"$scratch/stored/almost"
if run -runs=100000 "$scratch/stored"; then fail "no change of a stored input went wrong"; fi
grep -q "^almos" "$scratch"/kept/crash-* || fail "the changed input was not kept"
