#!/usr/bin/env bash
# run.sh PROGRAM-FOLDER [CHECK…]: starts a lab (lab/lab) and makes the checks of checks/ there, all or those named. Skipped, with
# the reason, where there is no Slurm or no namespaces may be made.
set -euo pipefail
unset TMPDIR  # nodes have a /tmp of their own
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=$(cd "$1" && pwd)
shift
lab=$PWD/tests/slurm/lab/lab
why=$("$lab" check) || { echo "skipped: $why"; exit 77; }

work=$(mktemp -d /tmp/annulus-slurm.XXXX)
mount -t tmpfs -o mode=755 tmpfs "$work"  # jobs save before they are killed, however slow the disk is; munged insists on the mode
export LAB=$work/lab LAB_SHARED=$PWD$'\n'$bin$'\n'$work ANNULUS_SITE=$work/site.conf
# The folders that nodes see may lie in one another, outer ones first.
LAB_SHARED=$(sort -u <<<"$LAB_SHARED")
mkdir "$LAB"
finish() {
  local status=$?
  "$lab" stop
  if [ $status -ne 0 ] && [ -n "${ANNULUS_KEEP:-}" ]; then echo "kept until umount -R: $work"; return; fi
  umount -R "$work" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

cat >"$work/site.conf" <<CONF
programs=$bin
profile=$PWD/tests/slurm/lab/profile.toml
# Ranks outnumber the cores of the machine by far: those that wait leave them to others.
prepare() {
  export OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive
  [ ! -e $bin/../tests/libannulus_patient_yield.so ] || export LD_PRELOAD=$bin/../tests/libannulus_patient_yield.so
  # That of runs which wait for a slow disk alone (\`slowly\` of support.sh): programs take longer to start with it.
  [ -z "\${SLOW_DISK_PATH:-}" ] || [ ! -e $bin/../tests/training/run/libslow_disk.so ] ||
    export LD_PRELOAD=\${LD_PRELOAD:+\$LD_PRELOAD:}$bin/../tests/training/run/libslow_disk.so
}
CONF
"$bin/annulus-tokens" pack --out "$work/shards" data/fixture/text >/dev/null 2>&1
sed "s|@WORK@|$work|" tests/slurm/run.toml.in >"$work/run.toml"
mkdir "$work/small" "$work/filling"
mount -t tmpfs -o size=1500k tmpfs "$work/small"  # a disk without room for a checkpoint
mount -t tmpfs -o size=24m tmpfs "$work/filling"  # one that is full when others have written there
"$lab" start 4

# shellcheck source=tests/slurm/support.sh
. tests/slurm/support.sh
[ $# -gt 0 ] || set -- training life failures refusals bench paper
for check in "$@"; do
  begin=$SECONDS
  # shellcheck source=/dev/null
  . "tests/slurm/checks/$check.sh"
  echo "$check: passed in $((SECONDS - begin)) s"
done
