#!/usr/bin/env bash
# What `submit` knows of the cluster before anything is queued; sourced by it after job.sh.
# shellcheck disable=SC2034,SC2154

# Options that follow from the profile's node. What is left out is the template's.
shape_of_nodes() {
  local gpus per_node node_cores
  gpus=$(profile_number node gpus) || exit 1
  per_node=$(profile_number ranks per_node) || exit 1
  node_cores=$(profile_number node cores) || exit 1
  shape=()
  [ "${gpus:-0}" -eq 0 ] || shape+=(--gpus-per-node="$gpus")
  [ -n "$per_node" ] || { [ "${gpus:-0}" -eq 0 ] || per_node=$gpus; }
  case $ranks in
    "") ;;
    node) per_node=1 ;;
    gpu) per_node=${gpus:-$per_node} ;;
    *) is_positive "$ranks" || refuse "ranks = '$ranks': give gpu, node or a number of ranks a node"
       per_node=$ranks ;;
  esac
  [ "${per_node:-1}" -gt 0 ] || refuse "ranks = '$ranks', and $profile_file has [node] gpus = ${gpus:-0} and [ranks] per_node = ${per_node}: a node needs a rank"
  if [[ $wanted == *-* ]]; then
    take_whole_nodes
  elif [ -n "$per_node" ]; then
    shape+=(--ntasks-per-node="$per_node")
    [ -z "$node_cores" ] || shape+=(--cpus-per-task=$((node_cores / per_node)))
  fi
  # A report, and a debug run on CPUs, need no GPUs.
  [ "$template" != cpu-debug ] || shape=()
}

# For --nodes=MIN-MAX. Slurm remembers the tasks of a job's first start and would wait for as many nodes again, so it is told of
# nodes alone: without the lines of the template on tasks, and with the launcher counting the ranks.
take_whole_nodes() {
  shape+=(--exclusive)
  export ANNULUS_RANKS=${ranks:-${per_node:-1}}
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  sed '/^#SBATCH --\(ntasks-per-node\|cpus-per-task\)=/d' "$script" >"$scratch/${script##*/}"
  script=$scratch/${script##*/}
}

# The value of an option of sbatch, --NAME=VALUE or -LETTER VALUE: the last of template, profile, site and submit's own command line.
option_value() { # NAME LETTER
  local value previous="" option
  value=$(sed -n "s/^#SBATCH --$1=\([^ ]*\).*/\1/p" "$script")
  for option in ${shape[@]+"${shape[@]}"} ${sbatch_options[@]+"${sbatch_options[@]}"} ${options[@]+"${options[@]}"}; do
    if [[ $option == "--$1="* ]]; then value=${option#*=}; elif [ "$previous" = "-$2" ]; then value=$option; fi
    previous=$option
  done
  printf '%s\n' "$value"
}

# partition_has FORMAT [-N]: what sinfo says of the partition, or of the default one; nothing where there is no such partition, or no
# sinfo: sbatch says it better.
partition_has() { sinfo -h ${2:+"$2"} ${partition:+-p "$partition"} -o "%P $1" 2>/dev/null | awk -v named="$partition" 'named != "" || $1 ~ /\*$/ {sub(/^[^ ]* */, ""); print}' || true; }
# most_of: the largest of the numbers on stdin; 0 where one is no number (no limit).
most_of() { awk '$1 !~ /^[0-9]+$/ {none = 1} $1 + 0 > most {most = $1 + 0} END {printf "%d\n", none ? 0 : most}'; }
# Times as Slurm writes them (man sbatch, --time), one a line, in seconds; other text stays.
in_seconds() {
  awk '{ days = 0; rest = $1; if (split($1, parts, "-") == 2) { days = parts[1]; rest = parts[2] }
         count = split(rest, t, ":")
         if ($1 !~ /^[0-9][0-9:-]*$/) print $1
         else if ($1 ~ /-/) print 86400 * days + 3600 * t[1] + 60 * t[2] + t[3]
         else if (count == 3) print 3600 * t[1] + 60 * t[2] + t[3]
         else print 60 * t[1] + t[2] }'
}

# What Slurm itself would queue for ever, or give otherwise than asked for after a while.
check_request() {
  local partition there switches most count where
  partition=$(option_value partition p) switches=$(option_value switches none)
  where="the partition ${partition:-of default}"
  for count in ${wanted//,/ }; do
    count=${count%-*}
    there=$(partition_has %D | awk '{sum += $1} END {print sum + 0}')
    [ "$there" -eq 0 ] || [ "$count" -le "$there" ] ||
      refuse "--nodes $wanted: $where has $there nodes ($(sinfo -h -o '%R: %D;' 2>/dev/null | xargs)): take fewer nodes or another --partition"
    most=$(partition_has %s | sed 's/.*-//' | most_of)
    [ "$most" -eq 0 ] || [ "$count" -le "$most" ] || refuse "--nodes $wanted: $where gives a job at most $most nodes: take fewer nodes or another --partition"
    [[ $switches =~ ^([0-9]+) ]] || continue
    most=$(scontrol -o show topology 2>/dev/null | sed -n 's/.*Level=0.* Nodes=\([^ ]*\).*/\1/p' |
      while read -r list; do scontrol show hostnames "$list" | wc -l; done | sort -rn | head -n "${BASH_REMATCH[1]}" | awk '{sum += $1} END {print sum + 0}')
    [ "$most" -eq 0 ] || [ "$count" -le "$most" ] ||
      refuse "--switches=$switches: ${switches%@*} leaf switches of this cluster have at most $most nodes, and $count are asked for: take fewer nodes, or more switches (scontrol show topology lists them)"
  done
  check_cpus
  check_time
}
check_cpus() {
  local tasks cpus most
  tasks=$(option_value ntasks-per-node none) cpus=$(option_value cpus-per-task c) most=$(partition_has %c -N | most_of)
  tasks=${tasks:-1} cpus=${cpus:-1}
  is_number "$tasks" && is_number "$cpus" && [ "$most" -gt 0 ] && [ $((tasks * cpus)) -gt "$most" ] || return 0
  refuse "--ntasks-per-node=$tasks and --cpus-per-task=$cpus take $((tasks * cpus)) CPUs of a node, and the nodes of $where have at most $most: give both (--cpus-per-task=$((most > tasks ? most / tasks : 1)) fits), or a profile with [node] cores and [ranks] per_node ($slurm/profiles)"
}
check_time() {
  local limit most
  limit=$(option_value time t)
  most=$(partition_has %l | in_seconds | most_of)
  [ "$most" -gt 0 ] && [ "$(in_seconds <<<"$limit" | most_of)" -gt "$most" ] || return 0
  refuse "--time=$limit: $where gives a job at most $(partition_has %l | xargs): give a shorter --time (a run that needs longer is requeued and goes on), or another --partition"
}

remedy() {
  case $1 in
    *[Nn]"ode configuration is not available"*|*"nvalid generic resource"*|*"nvalid Trackable"*)
      echo "No node of the partition has what ${shape[*]} ${options[*]} ask for: compare with sinfo -o '%P %D %c %m %G', take the profile of these nodes (profile in site.conf; $slurm/profiles), or fewer GPUs, ranks or cores of a node" ;;
    *"nvalid partition"*) echo "Partitions here: $(sinfo -h -o %R 2>/dev/null | xargs). Set --partition in sbatch_options of site.conf" ;;
    *"nvalid account"*) echo "Set --account in sbatch_options of site.conf (sacctmgr show associations user=$(id -un))" ;;
    *"ontact slurm controller"*|*"onnect"*|*"configuration source"*) echo "Slurm's controller does not answer here: is this a login node of the cluster (scontrol ping)? Without Slurm: ./annulus run N PROGRAM …" ;;
    *) echo "sbatch's own options are explained by man sbatch" ;;
  esac
}
