# shellcheck shell=bash disable=SC2154
# Set-up of a clone: Debian packages, and Kokkos and Kokkos Kernels by hash. Sourced by ./annulus, which sets `deps`.

kokkos_version=5.0.2
kokkos_sha256=188817bb452ca805ee8701f1c5adbbb4fb83dc8d1c50624566a18a719ba0fa5e
kernels_sha256=7c7af2c3659ecc620cc7b7016876330d9f288e8c6fd7b70b70907687df823b43          # the release archive
kernels_package_sha256=11a645e2b3468aafc62e021dd5e06559841f2a6ef6725265dbfa6bb1fd7fbb9b  # Debian's package of its headers
release_url=https://github.com/kokkos

packages=(
  g++ cmake ninja-build git pkg-config ca-certificates curl
  libopenmpi-dev openmpi-bin libhdf5-dev libopenblas-openmp-dev zlib1g-dev
  libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libsentencepiece-dev sentencepiece libhwloc-dev libgtest-dev libgmock-dev python3 python3-h5py python3-numpy
)

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    die "installing packages needs root: run as root, install sudo, install these yourself: ${packages[*]}, or take them from modules, Spack or conda (ANNULUS_PACKAGES=no)"; fi
}

# install_packages PACKAGE…: those of Debian's that are missing.
install_packages() {
  if [ "${ANNULUS_PACKAGES:-}" = no ]; then
    say "ANNULUS_PACKAGES=no: taking the compilers and libraries of this machine's modules and folders"
    return
  fi
  if ! command -v dpkg-query >/dev/null; then
    say "no Debian package manager here: taking the compilers and libraries of this machine (docs/install.md lists what is needed)"
    return
  fi
  local missing=() package
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root apt-get update -qq || true  # a stale list may still do; the install says if not
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$deps/apt.log" 2>&1 ||
    { tail -n 20 "$deps/apt.log" >&2; die "apt-get could not install: ${missing[*]} (whole log: $deps/apt.log)"; }
}

has_hash() { [ -f "$1" ] && echo "$2  $1" | sha256sum -c --status 2>/dev/null; }

# Base addresses of the package archives that apt is configured with, one a line.
package_mirrors() {
  command -v apt-get >/dev/null || return 0
  # shellcheck disable=SC2016  # $(REPO_URI) is apt's own variable
  { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null
    apt-get --print-uris update 2>/dev/null | sed -n "s|^'\([^']*/\)dists/.*|\1|p"; } | awk 'NF && !seen[$0]++'
}

# from_sources NAME SHA256 / from_release URL NAME SHA256 / from_mirror POOL-PATH NAME SHA256: put build/deps/NAME in
# place; false when it cannot be had there.
from_sources() {
  [ -n "${ANNULUS_SOURCES:-}" ] || return 1
  [ -f "$ANNULUS_SOURCES/$1" ] || return 1
  has_hash "$ANNULUS_SOURCES/$1" "$2" || { echo "annulus: $ANNULUS_SOURCES/$1 has the wrong SHA-256, expected $2: left aside" >&2; return 1; }
  cp "$ANNULUS_SOURCES/$1" "$deps/$1"
}
from_release() {
  command -v curl >/dev/null || return 1
  curl -fsSL --connect-timeout 10 --max-time 300 -o "$deps/$2.part" "$1" 2>/dev/null || { rm -f "$deps/$2.part"; return 1; }
  has_hash "$deps/$2.part" "$3" || { echo "annulus: $1 has the wrong SHA-256, expected $3: left aside" >&2; rm -f "$deps/$2.part"; return 1; }
  mv "$deps/$2.part" "$deps/$2"
}
from_mirror() {
  [ -x /usr/lib/apt/apt-helper ] || return 1
  local mirror
  while read -r mirror; do
    rm -f "$deps/$2.part"
    if /usr/lib/apt/apt-helper -qq -o Acquire::Retries=2 -o APT::Sandbox::User=root \
        download-file "${mirror%/}/$1" "$deps/$2.part" "SHA256:$3" >/dev/null 2>&1 && has_hash "$deps/$2.part" "$3"; then
      mv "$deps/$2.part" "$deps/$2"
      return 0
    fi
  done < <(package_mirrors)
  rm -f "$deps/$2.part"
  return 1
}

fetch_kokkos() {
  local archive=kokkos-$kokkos_version.tar.gz
  [ -f "$deps/kokkos-$kokkos_version/.complete" ] && return
  say "fetching Kokkos $kokkos_version"
  has_hash "$deps/$archive" $kokkos_sha256 || from_sources "$archive" $kokkos_sha256 ||
    from_release "$release_url/kokkos/releases/download/$kokkos_version/$archive" "$archive" $kokkos_sha256 ||
    from_mirror "pool/main/k/kokkos/kokkos_$kokkos_version.orig.tar.gz" "$archive" $kokkos_sha256 ||
    die "Kokkos $kokkos_version could not be had: neither in ANNULUS_SOURCES, nor from its release page, nor from the package mirror. Copy $archive into a folder and call ./annulus setup --sources THAT_FOLDER"
  rm -rf "$deps/kokkos-$kokkos_version"
  tar -xzf "$deps/$archive" -C "$deps"
  touch "$deps/kokkos-$kokkos_version/.complete"
}

# Only headers are used (src/training/linalg/CMakeLists.txt says why), so both forms end as one flat folder of headers.
fetch_kokkos_kernels() {
  local archive=kokkos-kernels-$kokkos_version.tar.gz package=kokkos-kernels-headers-$kokkos_version.deb
  local target=$deps/kokkos-kernels unpacked=$deps/kokkos-kernels.part
  [ -f "$target/.complete" ] && return
  say "fetching Kokkos Kernels $kokkos_version"
  rm -rf "$target" "$unpacked"
  mkdir -p "$target/include" "$unpacked"
  if has_hash "$deps/$package" $kernels_package_sha256 || from_sources "$package" $kernels_package_sha256; then
    unpack_kernels_package
  elif has_hash "$deps/$archive" $kernels_sha256 || from_sources "$archive" $kernels_sha256 ||
      from_release "$release_url/kokkos-kernels/releases/download/$kokkos_version/$archive" "$archive" $kernels_sha256; then
    unpack_kernels_release
  elif from_mirror pool/main/t/trilinos/libtrilinos-kokkos-kernels-dev_17.0.0+dfsg-5_amd64.deb "$package" $kernels_package_sha256; then
    unpack_kernels_package
  else
    die "Kokkos Kernels $kokkos_version could not be had: neither in ANNULUS_SOURCES, nor from its release page, nor from the package mirror. Copy $archive into a folder and call ./annulus setup --sources THAT_FOLDER"
  fi
  rm -rf "$unpacked"
  rm -f "$target/include/KokkosKernels_config.h"  # src/training/linalg brings its own
  touch "$target/.complete"
}
unpack_kernels_package() {
  dpkg-deb -x "$deps/$package" "$unpacked"
  cp -r "$unpacked"/usr/include/trilinos/Kokkos* "$unpacked"/usr/include/trilinos/generated_specializations_hpp "$target/include/"
}
unpack_kernels_release() {
  tar -xzf "$deps/$archive" -C "$unpacked" --strip-components 1
  find "$unpacked"/blas "$unpacked"/batched "$unpacked"/common -path '*unit_test*' -prune -o -path '*perf_test*' -prune -o \
    -name '*.hpp' -exec cp {} "$target/include/" \;
  # What the library's own configure step would generate: no kernel is instantiated beforehand, so these are empty.
  mkdir -p "$target/include/generated_specializations_hpp"
  grep -rhoE 'generated_specializations_hpp/[A-Za-z0-9_]+\.hpp' "$target/include" | sort -u | while read -r stub; do
    [ -f "$target/include/$stub" ] || : >"$target/include/$stub"
  done
}

setup() {
  while [ $# -gt 0 ]; do
    case $1 in
      --sources) [ $# -ge 2 ] || die "--sources needs a directory"; [ -d "$2" ] || die "--sources $2: no such directory"
                 ANNULUS_SOURCES=$(cd "$2" && pwd); shift 2 ;;
      *) die "setup: unknown argument '$1' (./annulus help)" ;;
    esac
  done
  mkdir -p "$deps"
  install_packages "${packages[@]}"
  if [ "${ANNULUS_KOKKOS:-}" = installed ]; then
    say "ANNULUS_KOKKOS=installed: Kokkos and Kokkos Kernels come from this machine's modules and folders"
    return
  fi
  fetch_kokkos
  fetch_kokkos_kernels
}
