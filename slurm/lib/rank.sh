#!/usr/bin/env bash
# rank.sh TOPOLOGY-PROGRAM PROFILE PROGRAM ARGUMENTS…: becomes the program, started by annulus-topology, which gives the rank its
# NICs, cores and memory. PROFILE may be empty.
set -euo pipefail
trap '' USR1  # until the program listens
exec "$1" --exec ${2:+--profile "$2"} -- "${@:3}"
