#!/usr/bin/env bash
# What the driver says of the preset cuda where its programs cannot start. Skipped where there is a driver.
set -euo pipefail
if PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep 'libcuda\.so\.1' >/dev/null; then
  echo "this machine has NVIDIA's driver"
  exit 77
fi

expect() { # TEXT COMMAND...: the command fails and says the text
  local said
  if said=$(LD_LIBRARY_PATH='' "${@:2}" 2>&1); then echo "succeeded: ${*:2}"; exit 1; fi
  grep -qF -- "$1" <<<"$said" || { echo "${*:2} should say '$1' and says: $said"; exit 1; }
}
expect "true of the preset cuda needs an NVIDIA GPU, and this machine has no driver for one (libcuda.so.1): use --preset cpu" \
  ./annulus run --preset cuda 1 true
expect "run: there is no program annulus-nothing (./annulus build cuda makes those of Annulus)" \
  ./annulus run --preset cuda 1 annulus-nothing
expect "--preset needs a name" ./annulus run --preset
