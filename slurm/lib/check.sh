#!/usr/bin/env bash
# The first act of a job: what would make it fail later, or be wrong in silence, is told now, with the node. Sourced after launch.sh.
# shellcheck disable=SC2154

# check_nodes PROGRAM FOLDER: one look at every node (facts.sh), all at once.
check_nodes() {
  local program=$1 folder=$2 token
  check_switches
  mkdir -p -- "$folder" 2>/dev/null || refuse "run.folder '$folder' cannot be made on $(hostname): $(mkdir -p -- "$folder" 2>&1 | sed 's/.*: //'). Give a folder of a file system that all nodes share"
  token=$(mktemp "$folder/.annulus-XXXXXXXXXXXX") || refuse "nothing can be written to '$folder' on $(hostname): no space, or no permission (df -h, ls -ld); free some or give another run.folder"
  token=${token##*/}
  asked=$(date +%s)
  answer=$(timeout "${ANNULUS_CHECK_SECONDS:-120}" \
    srun --mpi=none --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" --ntasks-per-node=1 --cpus-per-task=1 --overlap \
    "$slurm/lib/facts.sh" "$program" "$folder" "$token" "$topology_program" "$profile_file" 2>&1) || true
  answered=$(date +%s)
  rm -f "${folder:?}/$token"
  # Lines of these nodes with a fact; what Slurm and other programs say stands between them.
  facts=$(awk -v nodes="${nodes[*]%%.*}" '
    BEGIN { count = split(nodes, names, " "); for (i = 1; i <= count; ++i) known[names[i]] = 1 }
    ($1 in known) && $2 ~ /^(clock|processor|binary|build|libnccl|libmpi|driver|outdated|gpus|folder|free|profile|end)$/' <<<"$answer")
  local node
  for node in "${nodes[@]}"; do
    grep -q "^${node%%.*} end" <<<"$facts" || refuse_node "$node" "does not answer within ${ANNULUS_CHECK_SECONDS:-120} s: $(grep -vxF -- "$facts" <<<"$answer" | grep -F -- "${node%%.*}" | tr -d '[:cntrl:]' | head -n 1). Leave it out (sbatch --exclude=$node) and tell the site"
  done
  same binary "is another build of $(basename "$program")" "$(all_of build). Build once, in a folder that all nodes share, or install the same version on all"
  same libnccl "loads another NCCL" "Load the same module on all nodes, in prepare() of site.conf"
  same libmpi "loads another MPI library" "Load the same module on all nodes, in prepare() of site.conf"
  node=$(sed -n 's/ outdated .*//p' <<<"$facts" | head -n 1)
  [ -z "$node" ] || refuse_node "$node" "has an NVIDIA driver ($(sed -n "s/^$node driver //p" <<<"$facts")) that $(sed -n "s/^$node outdated //p" <<<"$facts"). Leave it out (--exclude=$node), ask the site to update it, or build with a CUDA that it runs"
  [ "$(all_of driver | tr ';' '\n' | sed 's/.*: //' | sort -u | wc -l)" -le 1 ] || say "note: NVIDIA drivers differ: $(all_of driver)"
  same processor "is another type of node" "Name one node type: --constraint, --partition or --exclude"
  same gpus "has other GPUs" "Name one node type: --constraint, --gpus-per-node=TYPE:N, or --exclude"
  check_clocks
  node=$(sed -n 's/ folder not seen$//p' <<<"$facts" | head -n 1)
  [ -z "$node" ] || refuse_node "$node" "does not see what $(hostname -s) writes to '$folder': the run's folder must lie on a file system that all nodes share"
  node=$(sed -n 's/ profile .*//p' <<<"$facts" | head -n 1)
  [ -z "$node" ] || refuse_node "$node" "is not what the profile $profile_file says: $(sed -n "s/^$node profile //p" <<<"$facts")"
  check_space "$folder"
  say "checked: ${#nodes[@]} nodes alike, $(sed -n 's/^[^ ]* build //p' <<<"$facts" | head -n 1), clocks, '$folder' seen by all"
}
refuse_node() { refuse "node $1 $2"; }
all_of() { sed -n "s/^\([^ ]*\) $1 /\1: /p" <<<"$facts" | sort -V | paste -sd';' | sed 's/;/; /g'; }

# same KEY WHAT REMEDY: nodes differ where their fact differs from that of the most.
same() {
  local most odd
  most=$(sed -n "s/^[^ ]* $1 //p" <<<"$facts" | sort | uniq -c | sort -rn | sed -n '1s/^ *[0-9]* //p')
  odd=$(most=$most awk -v key="$1" '$2 == key { name = $1; sub(/^[^ ]* [^ ]* /, ""); if ($0 != ENVIRON["most"]) { print name; exit } }' <<<"$facts")
  [ -n "$odd" ] || return 0
  refuse_node "$odd" "$2 than the others: $(sed -n "s/^$odd $1 //p" <<<"$facts"), not $most. $3"
}

# A node's time lies between the question and the last answer by the first node's clock, however long that took. When most do not, the
# first node's is the wrong one.
check_clocks() {
  local odd limit=${ANNULUS_CLOCK_SECONDS:-10}
  odd=$(awk -v asked="$asked" -v answered="$answered" -v limit="$limit" -v first="${nodes[0]%%.*}" '
    $2 == "clock" { ++all; off = $3 > answered ? $3 - answered : $3 < asked ? $3 - asked : 0 }
    $2 == "clock" && (off > limit || -off > limit) { if (!many++) { name = $1; by = off } }
    END { if (many > all / 2) print first, -by; else if (many) print name, by }' <<<"$facts")
  [ -z "$odd" ] || refuse_node "${odd% *}" "has a clock that is ${odd#* } s off the others: ask the site to start its time service (chronyc tracking), or --exclude=${odd% *}"
}

# Room for the next checkpoint beside those that are there.
check_space() {
  local free need newest
  free=$(sed -n "s/^${nodes[0]%%.*} free //p" <<<"$facts" | head -n 1)
  is_number "$free" || free=""  # not known
  newest=$(find "$1/checkpoints" -maxdepth 1 -name 'step-*' ! -name '*.tmp-*' -printf '%T@ %p\n' 2>/dev/null | sort -rn | sed -n '1s/[^ ]* //p') || true
  need=0
  [ -z "$newest" ] || need=$(du -sk -- "$newest" | head -n 1 | cut -f1)
  is_positive "$need" || need=16384
  [ "${free:-$need}" -ge "$need" ] ||
    refuse_node "${nodes[0]}" "has $((free / 1024)) MiB left in '$1', and a checkpoint takes $(((need + 1023) / 1024)): make room, lower checkpoint.keep, or give another run.folder"
}
