#!/usr/bin/env python3
"""annulus-bench attention beside PyTorch's context_parallel, in one go and in one table.

usage: attention.py --bench build/cuda/bin/annulus-bench [--gpus N] [--tokens 131072 262144] [--out comparison]

Causal attention, bf16, batch 1, over NCCL, on N GPUs of this machine (all by default), and where N is even on the same
GPUs as 2 nodes of N / 2, which NCCL is made to see (NCCL_HOSTID; between them loopback sockets). With --ranks there are
more ranks than GPUs, on nodes that have the same GPUs: ranks take turns on them, which compares schedules, not speeds.
Each program runs alone. Writes <out>.md, <out>.csv and <out>.json; the table goes to stdout, too. The exit status is 1
when a program failed; the table then has what the others gave.

Both sides give the median over the repetitions of the slowest rank's time, from a barrier on. Exposed: seconds in which
communication holds up compute, mean of the ranks; ours as the executor measures it, PyTorch's from a profiled pass
(context_parallel.py). TFLOP/s count 4 · head_dim operations for each unmasked pair and head forward, 10 · head_dim
backward.
"""

import argparse
import csv
import datetime
import importlib.util
import json
import os
import pathlib
import shlex
import subprocess
import sys

import launch

HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = ("nodes", "ranks", "gpus", "tokens", "program", "case", "forward_ms", "forward_tflops", "forward_exposed_ms", "backward_ms",
           "backward_tflops", "backward_exposed_ms", "error")
HEADINGS = ("nodes × ranks", "tokens", "", "forward ms", "TFLOP/s a GPU", "exposed ms", "backward ms", "TFLOP/s a GPU", "exposed ms")


def gpus_here():
    """How many GPUs programs see; 0 where nvidia-smi finds none."""
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    found = len([line for line in listed.stdout.splitlines() if line.startswith("GPU ")]) if listed.returncode == 0 else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else min(found, len([name for name in visible.split(",") if name.strip()]))


def check(parser, options):
    """Ends the program with what is missing, before anything runs."""
    here = gpus_here()
    if here == 0:
        parser.error("this machine shows no NVIDIA GPU (nvidia-smi --list-gpus, CUDA_VISIBLE_DEVICES): run it where there are some")
    options.gpus = options.gpus or here
    if not 1 <= options.gpus <= here:
        parser.error(f"--gpus {options.gpus}, but programs see {here} here: give 1 to {here}")
    options.ranks = options.ranks or options.gpus
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: give 1 or more")
    options.gpus = min(options.gpus, options.ranks)
    fewest = -(-options.ranks // options.gpus)
    options.nodes = options.nodes or [nodes for nodes in (1, 2) if nodes >= fewest and options.ranks % nodes == 0] or [fewest]
    launch.check(parser, options, options.ranks, "ranks", "./annulus build cuda makes build/cuda/bin/annulus-bench")
    for nodes in options.nodes:
        if nodes < fewest:
            parser.error(f"--nodes {nodes} has {options.ranks // nodes} ranks a node for {options.gpus} GPUs, and NCCL refuses two ranks of "
                         f"a node on one: give --nodes {fewest} or more")
    if options.gpus < here:  # programs deal their ranks over all GPUs that they see
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(here)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[:options.gpus])
    if not options.without_pytorch and importlib.util.find_spec("torch") is None:
        parser.error(f"{sys.executable} has no PyTorch: start this script with a Python that has it (2.11 was tried), or "
                     "measure Annulus alone (--without-pytorch)")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=pathlib.Path, required=True, help="the program annulus-bench of a build for GPUs")
    parser.add_argument("--gpus", type=int, default=0, help="0: all of this machine")
    parser.add_argument("--ranks", type=int, default=0, help="0: one a GPU")
    parser.add_argument("--nodes", type=int, nargs="+", help="machines that this one stands for, one after the other; 1, and 2 where "
                        "the ranks are even, by default")
    parser.add_argument("--tokens", type=int, nargs="+", default=[131072, 262144], help="of the whole sequence")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--schedules", nargs="+", default=["ring", "double-ring", "topology-burst"])
    parser.add_argument("--layout", default="zigzag")
    parser.add_argument("--kernel", default="automatic")
    parser.add_argument("--backends", nargs="+", default=["cudnn"], help="of PyTorch: cudnn, flash")
    parser.add_argument("--rotations", nargs="+", default=["allgather", "alltoall"], help="of PyTorch")
    parser.add_argument("--without-pytorch", action="store_true", help="measure Annulus alone")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--mpirun", type=shlex.split, default="mpirun --bind-to none", help="with its flags, in one string")
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds for each program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("comparison"), help="files without their ending")
    options = parser.parse_args()
    check(parser, options)
    return options


def row(options, nodes, tokens, program, case, forward, backward, error=""):
    pairs = options.heads * tokens * (tokens + 1) // 2
    of_row = {"nodes": nodes, "ranks": options.ranks, "gpus": options.gpus, "tokens": tokens, "program": program, "case": case, "error": error}
    for name, factor, values in (("forward", 4, forward), ("backward", 10, backward)):
        if values:
            seconds, exposed = values
            of_row[f"{name}_ms"] = seconds * 1e3
            of_row[f"{name}_tflops"] = factor * options.head_dim * pairs / seconds / options.gpus * 1e-12
            of_row[f"{name}_exposed_ms"] = None if exposed is None else exposed * 1e3
    return of_row


def ours(options, nodes, scratch):
    """Rows of annulus-bench, and its JSON."""
    result = scratch.with_suffix(".json")
    per_node = options.ranks // nodes
    command = launch.on_ranks(options.mpirun, options.ranks, nodes)
    command += [options.bench, "attention", "--schedule", *options.schedules, "--layout", options.layout, "--mask", "causal",
                "--tokens", *options.tokens, "--heads", options.heads, "--head-dim", options.head_dim, "--dtype", "bf16",
                "--kernel", options.kernel, "--transport", "nccl", "--ranks-per-node", per_node, "--repetitions", options.repetitions,
                "--topology", "none", "--json", result]
    ended = launch.run(command, scratch.with_suffix(".log"), options.time_limit)
    if not result.exists():
        return [row(options, nodes, 0, "Annulus", "", None, None, "failed")], None, False
    report = json.loads(result.read_text())
    rows = []
    for case in report.get("cases", [report]):
        values = {name: (case[name]["seconds"], (case[name]["exposed_communication"] or {}).get("seconds"))
                  for name in ("forward", "backward")}
        label = f"{case['config']['schedule']}, {case['config']['layout']}"
        rows.append(row(options, nodes, case["config"]["tokens"], "Annulus", label, **values))
    for case in report.get("refused", []):
        rows.append(row(options, nodes, case["tokens"], "Annulus", f"{case['schedule']}, {case['layout']}", None, None, case["reason"]))
    return rows, report, ended


def theirs(options, nodes, scratch):
    """Rows of PyTorch's context_parallel, and its JSON."""
    result = scratch.with_suffix(".json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", options.ranks,
               HERE / "context_parallel.py", "--tokens", *options.tokens, "--heads", options.heads, "--head-dim", options.head_dim,
               "--nodes", nodes, "--rotations", *options.rotations, "--backends", *options.backends,
               "--repetitions", options.repetitions, "--out", result]
    ended = launch.run(command, scratch.with_suffix(".log"), options.time_limit)
    if not result.exists():
        return [row(options, nodes, 0, "PyTorch", "", None, None, "failed")], None, False
    report = json.loads(result.read_text())
    rows = []
    for case in report["cases"]:
        values = {name: (case[name]["seconds"], case[name]["exposed_seconds"]) if name in case else None
                  for name in ("forward", "backward")}
        rows.append(row(options, nodes, case["tokens"], "PyTorch", f"{case['rotation']}, {case['backend']}",
                        error=case.get("error", ""), **values))
    return rows, report, ended


def markdown(options, rows, reports):
    peer = next((report for program, report in reports if program == "PyTorch" and report), {})
    mine = next((report for program, report in reports if program == "Annulus" and report), {})
    versions = f"; PyTorch {peer['version']}, cuDNN {peer['cudnn']}, NCCL {peer['nccl']}" if peer else ""
    turns = f"{options.ranks} ranks in turns on " if options.ranks > options.gpus else ""
    lines = [f"{turns}{options.gpus} × {peer.get('gpu', 'GPU')}, causal, bf16, {options.heads} heads, head_dim {options.head_dim}, batch 1; "
             f"Annulus git {mine.get('git_hash', '?')}{versions}; {datetime.date.today()}", "", "| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    number = lambda of_row, name, digits: "" if of_row.get(name) is None else f"{of_row[name]:.{digits}f}"  # noqa: E731
    for r in sorted(rows, key=lambda r: (r["nodes"], r["tokens"], r["program"])):
        cells = [f"{r['nodes']} × {options.ranks // r['nodes']}", str(r["tokens"]), f"{r['program']}, {r['case']}"]
        if r["error"]:
            lines.append("| " + " | ".join(cells) + f" | {r['error']} |" + " |" * 5)
            continue
        for name in ("forward", "backward"):
            cells += [number(r, f"{name}_ms", 2), number(r, f"{name}_tflops", 0), number(r, f"{name}_exposed_ms", 2)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for nodes in options.nodes:
        for program, measure in (() if options.without_pytorch else (("PyTorch", theirs),)) + (("Annulus", ours),):
            scratch = options.out.with_name(f"{options.out.name}-{program.lower()}-{nodes}-nodes")
            scratch.with_suffix(".json").unlink(missing_ok=True)
            rows, report, ended = measure(options, nodes, scratch)
            results.add(rows, (program, report), ended)
            with open(options.out.with_suffix(".csv"), "w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, restval="")
                writer.writeheader()
                writer.writerows(results.rows)
    print(results.text, end="")
    return 0 if results.good else 1


if __name__ == "__main__":
    sys.exit(main())
