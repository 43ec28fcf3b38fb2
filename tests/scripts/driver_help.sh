#!/usr/bin/env bash
# driver_help.sh: ./annulus explains every command by itself, and does nothing else then; version and change log agree.
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

version=$(sed -n 's/^project(Annulus VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
newest=$(sed -n 's/^## \([0-9.]*\).*/\1/p' docs/CHANGELOG.md | head -n 1)
if [ -z "$version" ] || [ "$version" != "$newest" ]; then
  fail "CMakeLists.txt has version '$version', the newest of docs/CHANGELOG.md is '$newest'"
fi
