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
# toml_value TABLE KEY: a value of the TOML on stdin, strings without their quotes and escapes; empty when it is left out.
toml_value() {
  LC_ALL=C awk -v wanted="$1.$2" '
    function bare(text) { gsub(/[] \t\r"\047[]/, "", text); return text }
    function byte(code) { return sprintf("%c", code) }
    function utf8(code) {
      if (code < 128) return byte(code)
      if (code < 2048) return byte(192 + int(code / 64)) byte(128 + code % 64)
      if (code < 65536) return byte(224 + int(code / 4096)) byte(128 + int(code / 64) % 64) byte(128 + code % 64)
      return byte(240 + int(code / 262144)) byte(128 + int(code / 4096) % 64) byte(128 + int(code / 64) % 64) byte(128 + code % 64)
    }
    function number(digits,  i, sum) {
      for (i = 1; i <= length(digits); ++i) sum = 16 * sum + index("0123456789abcdef", tolower(substr(digits, i, 1))) - 1
      return sum
    }
    function unescaped(text,  i, c, out, digits) {
      for (i = 1; i <= length(text); ++i) {
        c = substr(text, i, 1)
        if (c == "\"") return out
        if (c != "\\") { out = out c; continue }
        c = substr(text, ++i, 1)
        digits = c == "u" ? 4 : c == "U" ? 8 : 0
        if (digits) { out = out utf8(number(substr(text, i + 1, digits))); i += digits }
        else if (index("btnfr", c)) out = out substr("\b\t\n\f\r", index("btnfr", c), 1)
        else out = out c
      }
      return out
    }
    function value(text) {
      sub(/^[ \t]+/, "", text)
      if (text ~ /^\047/) return substr(text, 2, index(substr(text, 2), "\047") - 1)
      if (text ~ /^"/) return unescaped(substr(text, 2))
      sub(/[ \t\r]*(#.*)?$/, "", text)
      return text
    }
    /^[ \t]*\[/ { table = $0; sub(/#.*/, "", table); table = bare(table) "."; next }
    /^[^#=]+=/ && table bare(substr($0, 1, index($0, "=") - 1)) == wanted { print value(substr($0, index($0, "=") + 1)); exit }'
}
# profile_value TABLE KEY: a value of the profile; empty when it is left out. annulus-topology reads and checks all of it.
profile_value() { [ -z "$profile_file" ] || toml_value "$1" "$2" <"$profile_file"; }
# profile_number TABLE KEY: the same, a whole number.
profile_number() {
  local text; text=$(profile_value "$1" "$2")
  [ -z "$text" ] || is_number "$text" || refuse "$profile_file: [$1] $2 = $text: give a whole number, without a sign or digit separators"
  echo "$text"
}

# What others have written is text until it is known to be a number: bash evaluates expressions, and commands in them, wherever it
# computes.
is_number() { [[ $1 =~ ^(0|[1-9][0-9]{0,17})$ ]]; }
is_positive() { [[ $1 =~ ^[1-9][0-9]{0,17}$ ]]; }

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

# A field of `scontrol show job`. The first line holds the job's name, which may spell any field.
job_field() { scontrol show job "$SLURM_JOB_ID" 2>/dev/null | tail -n +2 | tr ' ' '\n' | sed -n "s/^$1=//p" | head -n 1; }

# Of these nodes those that Slurm has given up.
down_nodes() { sinfo -h -N -n "$(IFS=,; echo "$*")" -t down,no_respond -o %n 2>/dev/null | sort -u | paste -sd' '; }

check_switches() {
  local asked; asked=$(job_field ReqSwitch)
  [[ $asked =~ ^([1-9][0-9]{0,17})(@|$) ]] || asked=$(job_field Switches)
  [[ $asked =~ ^([1-9][0-9]{0,17})(@|$) ]] && [ ${#switches[@]} -gt 0 ] || return 0
  [ ${#switches[@]} -le "${BASH_REMATCH[1]}" ] ||
    refuse "--switches=${BASH_REMATCH[1]} was asked for, and the ${#nodes[@]} nodes of this job lie below ${#switches[@]} (${switches[*]}): no ${BASH_REMATCH[1]} leaf switches have as many free nodes. Ask for fewer nodes, more switches, or a longer wait (--switches=${BASH_REMATCH[1]}@HOURS:00:00)"
}

# config_value TABLE KEY: of the configuration in $config, as annulus-train --print-config prints it.
config_value() { toml_value "$1" "$2" <<<"$config"; }
config_number() {
  local text; text=$(config_value "$1" "$2")
  is_number "$text" || refuse "$1.$2 = $text: this script computes with at most 18 digits: take a smaller number"
  echo "$text"
}
# Sets $folder to run.folder. Control characters in it would forge lines of the log and of the record.
read_folder() {
  folder=$(config_value run folder && echo .)
  folder=${folder%$'\n'.}
  [[ $folder != *[[:cntrl:]]* ]] || refuse "run.folder = $(printf %q "$folder") holds control characters: give another folder"
  [[ $folder != -* ]] || folder=./$folder  # commands would take it for an option
}
