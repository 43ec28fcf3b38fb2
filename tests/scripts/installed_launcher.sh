#!/usr/bin/env bash
# installed_launcher.sh C-COMPILER: which build the installed launcher takes, with stand-ins for programs, driver and GPUs, and what the
# driver of a clone says of the preset cuda where its programs cannot start.
# Skipped where there is a driver.
set -euo pipefail
compiler=$1
if PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep 'libcuda\.so\.1' >/dev/null; then
  echo "this machine has NVIDIA's driver"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix
libexec=$prefix/libexec/annulus
mkdir -p "$prefix/bin" "$libexec/cpu" "$libexec/cuda" "$scratch/driver"

sed 's|@ANNULUS_LIBEXEC_FROM_BIN@|../libexec/annulus|' src/driver/installed.sh.in >"$prefix/bin/annulus"
cp src/driver/launch.sh "$libexec"
chmod +x "$prefix/bin/annulus"
ln -s annulus "$prefix/bin/annulus-train"
echo 'void driver(void) {}' >"$scratch/driver.c"
printf '#include <stdio.h>\n#ifdef GPU\nvoid driver(void);\n#else\nvoid driver(void) {}\n#endif\n' >"$scratch/program.c"
printf '%s\n' 'int main(int n, char** words) { driver(); printf(PRESET " %s", n > 1 ? words[1] : ""); }' >>"$scratch/program.c"
"$compiler" -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$scratch/driver/libcuda.so.1" "$scratch/driver.c"
"$compiler" '-DPRESET="cpu"' -o "$libexec/cpu/annulus-train" "$scratch/program.c"
"$compiler" '-DPRESET="cuda"' -DGPU -o "$libexec/cuda/annulus-train" "$scratch/program.c" -L"$scratch/driver" -l:libcuda.so.1

touch "$scratch/gpu"
export ANNULUS_AMD_DEVICE=$scratch/absent
none=(env LD_LIBRARY_PATH='' ANNULUS_GPU_DEVICES="$scratch/absent" ANNULUS_BUILD='')
driver=(env LD_LIBRARY_PATH="$scratch/driver" ANNULUS_GPU_DEVICES="$scratch/absent" ANNULUS_BUILD='')
gpu=(env LD_LIBRARY_PATH="$scratch/driver" ANNULUS_GPU_DEVICES="$scratch/gpu" ANNULUS_BUILD='')
train=$prefix/bin/annulus-train
says() { # STATUS TEXT COMMAND...: the command ends so and says the text
  local said status=0
  said=$("${@:3}" 2>&1) || status=1
  if [ $status -ne "$1" ] || ! grep -qF -- "$2" <<<"$said"; then
    echo "${*:3} should end with $1 and say '$2', and ends with $status and says: $said"
    exit 1
  fi
}
expect() { says 0 "$@"; }
refuse() { says 1 "$@"; }
expect "cpu one" "${none[@]}" "$train" one
expect "cpu one" "${driver[@]}" "$train" one
expect "cuda one" "${gpu[@]}" "$train" one
expect "cpu one" "${gpu[@]}" CUDA_VISIBLE_DEVICES= "$train" one
expect "cpu one" "${gpu[@]}" ANNULUS_BUILD=cpu "$train" one
refuse "no driver for one (libcuda.so.1): unset ANNULUS_BUILD" "${none[@]}" ANNULUS_BUILD=cuda "$train" one
expect "annulus-train of the build cuda: this machine has an NVIDIA GPU" "${gpu[@]}" "$prefix/bin/annulus" run 1 annulus-train one
expect "cpu one" "${gpu[@]}" "$prefix/bin/annulus" run --preset cpu 1 annulus-train one
expect "Installed here: cpu/ cuda/" "$prefix/bin/annulus" help
refuse "unknown command 'train'" "$prefix/bin/annulus" train

mkdir "$libexec/hip"  # a third build, for AMD's GPUs
"$compiler" '-DPRESET="hip"' -o "$libexec/hip/annulus-train" "$scratch/program.c"
amd=("${none[@]}" ANNULUS_AMD_DEVICE="$scratch/gpu")
expect "hip one" "${amd[@]}" "$train" one
expect "cpu one" "${amd[@]}" ROCR_VISIBLE_DEVICES= "$train" one
expect "cpu one" "${none[@]}" "$train" one
expect "annulus-train of the build hip: this machine has an AMD GPU" "${amd[@]}" "$prefix/bin/annulus" run 1 annulus-train one
expect "cuda one" "${gpu[@]}" "$train" one
rm -r "$libexec/hip"

mv "$libexec/cpu" "$scratch/cpu"  # for GPUs alone
refuse "annulus-train is not installed for the preset cpu, and this machine has no NVIDIA driver (libcuda.so.1) (in a clone of Annulus: cmake --install build/cpu" \
  "${none[@]}" "$train" one
expect "cuda one" "${driver[@]}" "$train" one

export LD_LIBRARY_PATH=''
refuse "true of the preset cuda needs an NVIDIA GPU, and this machine has no driver for one (libcuda.so.1): use --preset cpu" \
  ./annulus run --preset cuda 1 true
refuse "run: there is no program annulus-nothing (./annulus build cuda makes those of Annulus)" ./annulus run --preset cuda 1 annulus-nothing
refuse "--preset needs a name" ./annulus run --preset
