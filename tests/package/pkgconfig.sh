#!/usr/bin/env bash
# pkgconfig.sh COMPILER PREFIX SOURCE: compiles, links and runs a program by the pkg-config files of an installation.
set -euo pipefail
export PKG_CONFIG_PATH=$2/lib/pkgconfig:$2/lib64/pkgconfig
for file in "$2"/lib/pkgconfig/annulus-*.pc; do
  pkg-config --print-errors --exists "$(basename "$file" .pc)"
done
read -ra cflags <<<"$(pkg-config --cflags annulus-attention)"
read -ra libs <<<"$(pkg-config --libs annulus-attention)"
"$1" -O0 "${cflags[@]}" -o "$2/with_pkgconfig" "$3" "${libs[@]}"
said=$("$2/with_pkgconfig")
[ "$said" = "4 ranks" ] || { echo "the program says: $said"; exit 1; }
