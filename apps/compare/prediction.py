#!/usr/bin/env python3
"""What annulus-bench attention takes beside what the simulator predicts from links and kernels measured before, in one go.

usage: prediction.py --bench build/cuda/bin/annulus-bench --ranks N [--nodes 1 2] [--dtype bf16] [--out prediction]

For 1 node of N ranks, and for each other number of --nodes that this machine is to stand for: `annulus-bench links`
measures links and the local kernel and writes a cluster file; `annulus-bench attention --cluster` takes that file,
predicts every case and measures it. Nothing of the measured passes goes into their prediction. Ranks are MPI's; on GPUs
there are as many as GPUs, and messages go over NCCL. Writes <out>.md and <out>.json (and <out>-N-nodes.toml, the cluster
files); the table goes to stdout, too. The exit status is 1 when a program failed, and 3 when all ran and a ratio is
further from 1 than --within.
"""

import argparse
import json
import pathlib
import shlex
import sys

import launch

PASSES = ("forward", "backward")
MOST_ROWS = 16384  # of a block: kernels of GPUs are at their full rate long before
HEADINGS = ("nodes × ranks", "tokens", "", "forward ms", "predicted", "ratio", "backward ms", "predicted", "ratio")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=pathlib.Path, required=True, help="the program annulus-bench")
    parser.add_argument("--ranks", type=int, required=True, help="2 or more; on GPUs at most as many as these")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1], help="machines that this one stands for, one after the other")
    parser.add_argument("--tokens", type=int, nargs="+", default=[131072], help="of the whole sequence")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="bf16", help="f32, bf16 or f16")
    parser.add_argument("--schedules", nargs="+", default=["ring", "burst", "topology-burst"])
    parser.add_argument("--layout", default="zigzag")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--within", type=float, default=0.15, help="by which measured / predicted may differ from 1")
    parser.add_argument("--mpirun", type=shlex.split, default="mpirun --bind-to none", help="with its flags, in one string")
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds for each program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("prediction"), help="files without their ending")
    options = parser.parse_args()
    if options.ranks < 2:
        parser.error(f"--ranks {options.ranks}: links are between ranks: give 2 or more")
    launch.check(parser, options, options.ranks, "ranks", "./annulus build makes it")
    for tokens in options.tokens:
        if tokens < options.ranks:
            parser.error(f"--tokens {tokens} are fewer than the ranks: give more")
    return options


def measure(options, nodes):
    """The report of annulus-bench attention on that many nodes, None without one, and whether all ended well."""
    stem = options.out.with_name(f"{options.out.name}-{nodes}-nodes")
    cluster, result = stem.with_suffix(".toml"), stem.with_suffix(".json")
    for file in (cluster, result):
        file.unlink(missing_ok=True)
    start = launch.on_ranks(options.mpirun, options.ranks, nodes)
    shape = ["--heads", options.heads, "--kv-heads", options.heads, "--head-dim", options.head_dim, "--dtype", options.dtype,
             "--ranks-per-node", options.ranks // nodes]
    # Kernels are measured on blocks of the size of a shard, and of half of one, which a causal mask leaves of most blocks of zigzag.
    rows = sorted({min(max(16, tokens // options.ranks // parts), MOST_ROWS) for tokens in options.tokens for parts in (1, 2)})
    if not launch.run([*start, options.bench, "links", *shape, "--rows", *rows, "--output", cluster, "--json", stem.with_suffix(".links.json")],
                      stem.with_suffix(".links.log"), options.time_limit):
        return None, False
    ended = launch.run([*start, options.bench, "attention", *shape, "--schedule", *options.schedules, "--layout", options.layout,
                        "--mask", "causal", "--tokens", *options.tokens, "--repetitions", options.repetitions, "--cluster", cluster, "--json", result],
                       stem.with_suffix(".log"), options.time_limit)
    return (json.loads(result.read_text()) if result.exists() else None), ended


def rows_of(options, nodes, report):
    rows = []
    for case in report.get("cases", [report]):
        row = {"nodes": nodes, "ranks": options.ranks, "tokens": case["config"]["tokens"],
               "case": f"{case['config']['schedule']}, {case['config']['layout']}"}
        for name in PASSES:
            row[name] = {"seconds": case[name]["seconds"], "predicted": case[name]["predicted"]["seconds"],
                         "ratio": case[name]["predicted"]["measured_over_predicted"]}
        rows.append(row)
    return rows


def markdown(options, rows, reports):
    first = next((report.get("cases", [report])[0] for report in reports if report), None)
    where = first["topology"] if first else {}
    lines = [f"{options.ranks} ranks, causal, {options.dtype}, {options.heads} heads, head_dim {options.head_dim}, batch 1; "
             f"{where.get('execution_space', '?')}, kernel {where.get('attention_kernel', '?')}, {where.get('communicator', '?')}; "
             f"git {first['git_hash'] if first else '?'}", "", "| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for row in rows:
        cells = [f"{row['nodes']} × {row['ranks'] // row['nodes']}", str(row["tokens"]), row["case"]]
        for name in PASSES:
            of = row[name]
            cells += [f"{1e3 * of['seconds']:.2f}", f"{1e3 * of['predicted']:.2f}", f"{of['ratio']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    ratios = [row[name]["ratio"] for row in rows for name in PASSES]
    if ratios:
        inside = sum(abs(ratio - 1) <= options.within for ratio in ratios)
        lines += ["", f"measured / predicted is {min(ratios):.3f} to {max(ratios):.3f}; {inside} of {len(ratios)} are within {options.within:.0%}"]
    return "\n".join(lines) + "\n"


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for nodes in options.nodes:
        report, ended = measure(options, nodes)
        results.add(rows_of(options, nodes, report) if report else [], report, ended)
    print(results.text, end="")
    if not results.good:
        return 1
    return 0 if all(abs(row[name]["ratio"] - 1) <= options.within for row in results.rows for name in PASSES) else 3


if __name__ == "__main__":
    sys.exit(main())
