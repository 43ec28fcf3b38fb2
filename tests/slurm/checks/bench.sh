#!/usr/bin/env bash
# The other templates over two and four nodes: links, scaling as arrays with a report at their end, the debug run.
# shellcheck disable=SC2034,SC2154

submit() { on_login slurm/submit --ntasks-per-node=1 --cpus-per-task=1 --time=10 --output="$log" "$@" || fail "submit $*"; }
# Switches that the names of the nodes do not follow: those of one switch are neighbours all the same.
printf 'SwitchName=leaf1 Nodes=n1,n3\nSwitchName=leaf2 Nodes=n2,n4\nSwitchName=spine Switches=leaf[1-2]\n' >"$LAB/etc/topology.conf"
on_login scontrol reconfigure
new_switches() { on_login scontrol -o show topology | grep -q 'SwitchName=leaf1 .*Nodes=n1,n3'; }
within "the controller knows the new switches" new_switches
log=$work/links.log
job=$(submit --nodes=4 --ntasks-per-node=2 links "$work/cluster.toml" --no-kernels --min-bytes 4096 --max-bytes 262144 --repetitions 2 --seconds 0.05 | sed 's/job //')
ends "$job" COMPLETED
said "nodes: n1 n3 n2 n4, below leaf1 leaf2"
python3 -c 'import json, sys; hosts = json.load(open(sys.argv[1]))["topology"]["hosts"]; assert hosts == "n1 n1 n3 n3 n2 n2 n4 n4".split(), hosts' "$work/cluster.json" ||
  fail "ranks are not in the order of the switches"
grep -q '^\[inter_node\]' "$work/cluster.toml" || fail "no links between nodes in cluster.toml"
"$bin/annulus-plan" --cluster "$work/cluster.toml" --ranks 4 --ranks-per-node 2 --tokens 4096 >/dev/null || fail "annulus-plan does not take cluster.toml"

# The measured file chooses the schedule of a run.
train chosen --nodes=2 --ntasks-per-node=2 -- --set attention.schedule=auto --set "attention.cluster=$work/cluster.toml" --set train.steps=5
ends "$job" COMPLETED
said "; chosen by rates of"

log=$work/bench.log
jobs=$(submit --nodes 2,4 --open-mode=append bench-attention "$work/bench" --strong 512 --weak 128 --schedule ring topology-burst --heads 4 --kv-heads 2 --head-dim 16 \
  --repetitions 2 --cluster "$work/cluster.toml" --check)
last=$(sed -n 's/job \([0-9]*\): the report.*/\1/p' <<<"$jobs")
ends "$last" COMPLETED
python3 - "$work/bench/scaling.csv" <<'PYTHON' || fail "scaling.csv: $jobs"
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
found = {(r["nodes"], r["schedule"], r["tokens"], r["pass"]) for r in rows}
wanted = {(n, s, t, p) for n, weak in (("2", "256"), ("4", "512")) for t in ("512", weak) for s in ("ring", "topology-burst") for p in ("forward", "backward")}
assert found == wanted, (wanted - found, found - wanted)
for r in rows:
    assert r["check_passed"].lower() in ("true", "1", "passed"), r["check_passed"]
    assert float(r["tflops_per_rank"]) > 0 and float(r["predicted_seconds"]) > 0 and float(r["exposed_communication_share"]) >= 0 and float(r["local_kernel_share"]) > 0, r
PYTHON
grep -q "<svg" "$work/bench/scaling.html" || fail "no drawings in scaling.html"

debug=$PWD/build/cpu-debug/bin
[ -x "$debug/annulus-train" ] || debug=$bin
for count in 2 4; do
  log=$work/debug-$count.log
  job=$(submit --nodes=$count --ntasks-per-node=2 cpu-debug "$work/run.toml" --set run.folder="$work/debug-$count" --set run.device=gpu | sed 's/job //')
  ends "$job" COMPLETED
  if ldd "$debug/annulus-train" | grep -q libasan; then said "programs: $debug, with asserts and sanitizers"; else said "$debug/annulus-train was built without sanitizers and asserts"; fi
  said "check passed"
  said "step 3/3"
  said "annulus: passed"
done
