#!/usr/bin/env bash
# What all templates do first and last; sourced by them with $slurm set. Nothing here starts ranks: launch.sh does.
# shellcheck disable=SC2034,SC2154  # variables are shared between the sourced files

say() { echo "annulus: $*"; }
refuse() { echo "annulus: $*" >&2; exit 1; }
# No command fails in silence.
set -E
trap 'failed=$?; [ $failed -gt 128 ] || echo "annulus: ${BASH_SOURCE[0]}, line $LINENO: status $failed of: $BASH_COMMAND" >&2' ERR

# The site: who, where and with what (site.conf.example). Plain defaults without one.
sbatch_options=()
programs=${ANNULUS_BIN:-}
profile=${ANNULUS_SITE_PROFILE:-}
mpi=${ANNULUS_MPI:-auto}
ranks=${ANNULUS_RANKS:-}
prepare() { :; }
read_site() {
  local file=${ANNULUS_SITE:-$slurm/site.conf}
  if [ -f "$file" ]; then
    # shellcheck source=/dev/null
    . "$file"
  elif [ -n "${ANNULUS_SITE:-}" ]; then
    refuse "ANNULUS_SITE=$ANNULUS_SITE: there is no such file; copy slurm/site.conf.example and fill it in"
  fi
  # What this submission says goes over what the site says.
  programs=${ANNULUS_BIN:-$programs} profile=${ANNULUS_SITE_PROFILE:-$profile} mpi=${ANNULUS_MPI:-$mpi} ranks=${ANNULUS_RANKS:-$ranks}
  find_profile "$profile"
}

# A name of slurm/profiles, or a file.
find_profile() {
  profile_file=""
  [ -n "$1" ] || return 0
  profile_file=$1
  [[ $1 == *.toml ]] || profile_file=$slurm/profiles/$1.toml
  [ -f "$profile_file" ] || refuse "profile '$1': there is no $profile_file; known are: $(cd "$slurm/profiles" && printf '%s ' ./*.toml | sed 's|\./||g; s|\.toml||g')(docs/formats/site-profile.md shows how to write one)"
}
# profile_value TABLE KEY: a value of the profile; empty when it is left out. annulus-topology reads and checks all of it.
profile_value() {
  [ -n "$profile_file" ] || return 0
  awk -v table="[$1]" -v key="$2" '
    /^\[/ { here = $1 == table }
    here && $1 == key { sub(/^[^=]*= */, ""); sub(/[ \t]*#.*$/, ""); gsub(/"/, ""); print; exit }' "$profile_file"
}

# A program by name, from the folder that the site names, else from PATH.
program() {
  local file=${programs:+$programs/}$1
  command -v "$file" >/dev/null ||
    refuse "$file is not on $(hostname): set 'programs' in $slurm/site.conf, or ANNULUS_BIN, to the folder of the programs (build/cpu/bin after ./annulus build)"
  command -v "$file"
}

begin_job() {
  [ -n "${SLURM_JOB_ID:-}" ] || refuse "this is a batch script of Slurm, and there is no job here: sbatch ${BASH_SOURCE[-1]} … (without Slurm: ./annulus run N PROGRAM …)"
  read_site
  prepare
}

# $private: a folder of this job alone, on this node, that goes when the script ends. In /tmp others can put links where they know a name.
private_folder() {
  private=$(mktemp -d "${TMPDIR:-/tmp}/annulus.XXXXXXXXXXXX") || refuse "no folder can be made in ${TMPDIR:-/tmp} on $(hostname): set TMPDIR to one that you can write to"
  trap 'rm -rf "$private"' EXIT
}

# A field of `scontrol show job`.
job_field() { scontrol -o show job "$SLURM_JOB_ID" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$1=//p" | head -n 1; }

# Of these nodes those that Slurm has given up.
down_nodes() { sinfo -h -N -n "$(IFS=,; echo "$*")" -t down,no_respond -o %n 2>/dev/null | sort -u | paste -sd' '; }

check_switches() {
  local asked; asked=$(job_field ReqSwitch)
  [[ $asked =~ ^([1-9][0-9]*) ]] || asked=$(job_field Switches)
  [[ $asked =~ ^([1-9][0-9]*) ]] && [ ${#switches[@]} -gt 0 ] || return 0
  [ ${#switches[@]} -le "${BASH_REMATCH[1]}" ] ||
    refuse "--switches=${BASH_REMATCH[1]} was asked for, and the ${#nodes[@]} nodes of this job lie below ${#switches[@]} (${switches[*]}): no ${BASH_REMATCH[1]} leaf switches have as many free nodes. Ask for fewer nodes, more switches, or a longer wait (--switches=${BASH_REMATCH[1]}@HOURS:00:00)"
}

# config_value TABLE KEY: of the configuration in $config, as annulus-train --print-config prints it.
config_value() {
  awk -v table="[$1]" -v key="$2" '/^\[/ { here = $1 == table } here && $1 == key { sub(/^[^=]*= /, ""); sub(/  # .*$/, ""); print; exit }' <<<"$config" |
    sed "s/^['\"]\(.*\)['\"]\$/\1/"
}
