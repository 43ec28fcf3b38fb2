#!/usr/bin/env bash
# driver_help.sh: ./annulus explains every command by itself, and does nothing else then; version and change log agree; what scripts
# print arrives, or they fail and say so.
set -euo pipefail
fail() { echo "$*"; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A copy without programs and sources: a command that did more than explain would fail, or leave something behind.
mkdir "$scratch/tree"
cp --parents annulus src/driver/*.sh "$scratch/tree"
cd "$scratch/tree"
commands=$(./annulus help | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' | sed '/^\.$/d' | sort -u)
[ "$(wc -w <<<"$commands")" -ge 8 ] || fail "the commands of the help were not found: $commands"
for command in $commands; do
  for way in "$command --help" "$command -h" "help $command"; do
    # shellcheck disable=SC2086  # words
    said=$(./annulus $way 2>&1) || fail "./annulus $way fails: $said"
    [[ $said == "  $command"* ]] || fail "./annulus $way says: $said"
    [ "$(sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' <<<"$said" | wc -l)" -eq 1 ] || fail "./annulus $way explains more than one command: $said"
  done
done
[[ $(./annulus build cpu --help) == "  build"* ]] || fail "./annulus build cpu --help"
if said=$(./annulus help nothing 2>&1); then fail "./annulus help nothing succeeds: $said"; fi
[ ! -e build ] || fail "./annulus COMMAND --help has made build/"
cd - >/dev/null
if said=$(./annulus run --preset nothing 2>&1); then fail "./annulus run --preset nothing succeeds: $said"; fi
[[ $said == *"no preset 'nothing'"*cpu* ]] || fail "./annulus run --preset nothing says: $said"
# Help that cannot be written is no reason to do what was to be explained.
if said=$(./annulus run --help 2>&1 >/dev/full); then fail "./annulus run --help succeeds without output"; fi
[[ $said == *"standard output could not be written"* ]] || fail "./annulus run --help says: $said"

for script in "./annulus help" "./annulus --version" "slurm/submit --help" "slurm/status --help" "python3 apps/tokens/pack_tokenizer_json.py --help"; do
  for where in /dev/full closed; do
    status=0
    # shellcheck disable=SC2086  # words
    if [ $where = closed ]; then said=$($script 2>&1 >&-) || status=$?; else said=$($script 2>&1 >$where) || status=$?; fi
    [ $status -eq 1 ] || fail "$script, standard output $where: ends with $status and says: $said"
    [[ $said == *"standard output could not be written"* && $said != *$'\n'* ]] || fail "$script, standard output $where: says: $said"
  done
  # shellcheck disable=SC2086  # words
  said=$({ $script | true; } 2>&1) || true
  [ -z "$said" ] || fail "$script tells a reader that has gone away: $said"
done

version=$(sed -n 's/^project(Annulus VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
newest=$(sed -n 's/^## \([0-9.]*\).*/\1/p' docs/CHANGELOG.md | head -n 1)
[[ $(./annulus --version) == "annulus $version ("*")" ]] || fail "./annulus --version says: $(./annulus --version)"
if [ -z "$version" ] || [ "$version" != "$newest" ]; then
  fail "CMakeLists.txt has version '$version', the newest of docs/CHANGELOG.md is '$newest'"
fi
