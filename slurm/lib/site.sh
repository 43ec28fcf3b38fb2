#!/usr/bin/env bash
# What `submit` knows of the cluster before anything is queued; sourced by it after job.sh.
# shellcheck disable=SC2034,SC2154

# Options that follow from the profile's node. What is left out is the template's.
shape_of_nodes() {
  local gpus per_node node_cores
  gpus=$(profile_value node gpus) per_node=$(profile_value ranks per_node) node_cores=$(profile_value node cores)
  shape=()
  [ "${gpus:-0}" -eq 0 ] || shape+=(--gpus-per-node="$gpus")
  [ -n "$per_node" ] || { [ "${gpus:-0}" -eq 0 ] || per_node=$gpus; }
  case $ranks in node) per_node=1 ;; gpu) per_node=${gpus:-$per_node} ;; [1-9]*) per_node=$ranks ;; esac
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

# The value of an option of sbatch, --NAME=VALUE or -LETTER VALUE; that of submit's own command line counts.
option_value() { # NAME LETTER
  local value="" previous="" option
  for option in ${sbatch_options[@]+"${sbatch_options[@]}"} ${options[@]+"${options[@]}"}; do
    if [[ $option == "--$1="* ]]; then value=${option#*=}; elif [ "$previous" = "-$2" ]; then value=$option; fi
    previous=$option
  done
  echo "$value"
}

# What Slurm itself would queue for ever, or give otherwise than asked for after a while.
check_request() {
  local partition there switches most count
  partition=$(option_value partition p) switches=$(option_value switches none)
  for count in ${wanted//,/ }; do
    count=${count%-*}
    there=$(sinfo -h ${partition:+-p "$partition"} -o '%P %D' 2>/dev/null | awk -v named="$partition" 'named != "" || $1 ~ /\*$/ {sum += $2} END {print sum + 0}') || there=0  # sbatch says it better
    [ "$there" -eq 0 ] || [ "$count" -le "$there" ] ||
      refuse "--nodes $wanted: the partition ${partition:-of default} has $there nodes ($(sinfo -h -o '%R: %D;' 2>/dev/null | xargs)): take fewer nodes or another --partition"
    [[ $switches =~ ^([0-9]+) ]] || continue
    most=$(scontrol -o show topology 2>/dev/null | sed -n 's/.*Level=0.* Nodes=\([^ ]*\).*/\1/p' |
      while read -r list; do scontrol show hostnames "$list" | wc -l; done | sort -rn | head -n "${BASH_REMATCH[1]}" | awk '{sum += $1} END {print sum + 0}')
    [ "$most" -eq 0 ] || [ "$count" -le "$most" ] ||
      refuse "--switches=$switches: ${switches%@*} leaf switches of this cluster have at most $most nodes, and $count are asked for: take fewer nodes, or more switches (scontrol show topology lists them)"
  done
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
