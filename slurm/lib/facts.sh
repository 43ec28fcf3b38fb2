#!/usr/bin/env bash
# facts.sh PROGRAM FOLDER TOKEN TOPOLOGY-PROGRAM PROFILE: what this node is and has, as lines KEY VALUE, for check.sh.
# FOLDER is that of the run, TOKEN a file there that the first node has just written.
program=$1 folder=$2 token=$3 topology=$4 profile=$5
fact() { echo "$(hostname -s) $*"; }

fact clock "$(date +%s)"
fact processor "$(nproc --all) cores, $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)"
if command -v "$program" >/dev/null; then
  fact binary "$(sha256sum "$(command -v "$program")" | cut -c1-16)"
  fact build "$("$(dirname "$0")/alone.sh" "$program" --version 2>&1 | tail -n 1)"
  libraries=$(ldd "$program" 2>/dev/null)
  for library in libnccl libmpi; do
    file=$(sed -n "s|.*=> \(/[^ ]*/$library\.so[^ ]*\).*|\1|p" <<<"$libraries" | head -n 1)
    [ -z "$file" ] || fact "$library" "$(basename "$(readlink -f "$file")")"
  done
  cuda=$(sed -n 's/.*libcu\(dart\|blasLt\)\.so\.\([0-9][0-9]*\).*/\2/p' <<<"$libraries" | sort -rn | head -n 1)
else
  fact binary missing
fi
if command -v nvidia-smi >/dev/null; then
  fact driver "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sort -u | xargs)"
  newest=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9][0-9]*\).*/\1/p' | head -n 1)
  # Drivers of one major version of CUDA run programs of all its minor ones.
  if [ -n "${cuda:-}" ] && [ -n "$newest" ] && [ "$cuda" -gt "$newest" ]; then fact outdated "runs CUDA $newest at most, and the program was built with CUDA $cuda"; fi
  fact gpus "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c | xargs)"
fi
if [ -e "$folder/$token" ]; then fact folder seen; else fact folder "not seen"; fi
fact free "$(df -k --output=avail -- "$folder" 2>/dev/null | tail -n 1 | tr -d ' ')"  # this column alone: names of mounts hold blanks
if [ -n "$profile" ]; then
  said=$("$topology" --profile "$profile" 2>&1 >/dev/null) || fact profile "${said//$'\n'/; }"
fi
fact end ""
