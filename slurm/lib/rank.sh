#!/usr/bin/env bash
# rank.sh TOPOLOGY-PROGRAM PROFILE PROGRAM ARGUMENTS…: becomes the program, started by annulus-topology where that is built, which
# gives the rank its cards, cores and memory. TOPOLOGY-PROGRAM and PROFILE may be empty.
set -euo pipefail
trap '' USR1  # until the program listens
topology=$1 profile=$2
shift 2
[ -z "$topology" ] || exec "$topology" --exec ${profile:+--profile "$profile"} -- "$@"
exec "$@"
