#!/usr/bin/env bash
# completion.sh FOLDER: what bash offers behind words, by the completions of FOLDER.
set -euo pipefail
complete_words() {  # PROGRAM WORDS…, the last of which is being typed
  # shellcheck source=/dev/null
  . "$folder/$1"
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
  "_${1//-/_}"
  echo "${COMPREPLY[*]}"
}
folder=$1
expect() {  # OFFER PROGRAM WORDS…
  local offer
  offer=$(complete_words "${@:2}")
  [ "$offer" = "$1" ] || { echo "${*:2} should offer '$1', and offers '$offer'"; exit 1; }
}
expect "attention" annulus-bench att
expect "--schedule" annulus-bench attention --sche
expect "low" annulus-topology --bound lo
expect "--plan-memory" annulus-train run.toml --plan
expect "" annulus-tokens pack texts
expect "annulus-train" annulus run 2 annulus-tr
