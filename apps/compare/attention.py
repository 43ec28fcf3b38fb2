#!/usr/bin/env python3
"""annulus-bench attention beside PyTorch's context_parallel, in one go and in one table.

usage: attention.py --bench build/cuda/bin/annulus-bench [--gpus N] [--tokens 131072 262144] [--out comparison]

Causal attention, bf16, batch 1, over NCCL, on N GPUs of this machine (all by default), and where N is even on the same
GPUs as 2 nodes of N / 2, which NCCL is made to see (NCCL_HOSTID; between them loopback sockets). With --ranks there are
more ranks than GPUs, on nodes that have the same GPUs: ranks take turns on them, which compares schedules, not speeds.
Each program runs alone. With --rounds they run in turns, one after the other and again, since what else the machine and
its network do changes from one minute to the next: a difference is one where the ranges of several rounds do not overlap.
Writes <out>.md, <out>.csv and <out>.json; the table goes to stdout, too. The exit status is 1
when a program failed or did not run for want of time (--budget); the table then has what the others gave.

Times are the slowest rank's, from a barrier on: the median over the repetitions of all rounds, and (smallest to largest).
Exposed: seconds in which communication holds up compute, mean of the ranks, median of the rounds; ours as the executor
measures it, PyTorch's from a profiled pass (context_parallel.py). TFLOP/s count 4 · head_dim operations for each unmasked pair and head forward, 10 · head_dim
backward.
"""

import argparse
import csv
import datetime
import itertools
import json
import os
import pathlib
import shlex
import statistics
import sys

import launch

HERE = pathlib.Path(__file__).resolve().parent
PASSES = {"forward": 4, "backward": 10}  # operations of an unmasked pair, in units of head_dim
COLUMNS = ("nodes", "ranks", "gpus", "tokens", "program", "case", "rounds",
           *(f"{name}_{column}" for name in PASSES for column in ("ms", "ms_min", "ms_max", "tflops", "exposed_ms")), "error")
HEADINGS = ("nodes × ranks", "tokens", "", "forward ms", "TFLOP/s a GPU", "exposed ms", "backward ms", "TFLOP/s a GPU", "exposed ms")


def check(parser, options):
    """Ends the program with what is missing, before anything runs."""
    here = launch.check_gpus(parser)
    options.gpus = options.gpus or here
    if not 1 <= options.gpus <= here:
        parser.error(f"--gpus {options.gpus}, but programs see {here} here: give 1 to {here}")
    options.ranks = options.ranks or options.gpus
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: give 1 or more")
    options.gpus = min(options.gpus, options.ranks)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give 1 or more")
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
    launch.check_torch(parser, options)


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
    parser.add_argument("--repetitions", type=int, default=5, help="of each pass in a round")
    parser.add_argument("--rounds", type=int, default=1, help="times that the programs run in turns")
    parser.add_argument("--mpirun", type=shlex.split, default="mpirun --bind-to none", help="with its flags, in one string")
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds for each program")
    parser.add_argument("--budget", type=float, default=0, help="seconds for all programs together; 0: any number")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("comparison"), help="files without their ending")
    options = parser.parse_args()
    check(parser, options)
    options.time = launch.Budget(options.budget, options.time_limit)
    return options


def row(options, nodes, tokens, program, case, forward=None, backward=None, error=""):
    """What one round gave. `forward` and `backward`: seconds of each repetition, and exposed seconds or None."""
    return {"nodes": nodes, "ranks": options.ranks, "gpus": options.gpus, "tokens": tokens, "program": program, "case": case,
            "forward": forward, "backward": backward, "error": error}


def over_rounds(options, rows):
    """The rows of all rounds, those of one case made one, in the order of the first round."""
    cases = {}
    for of_round in rows:
        cases.setdefault(tuple(of_round[key] for key in ("nodes", "tokens", "program", "case")), []).append(of_round)
    joined = []
    for of_case in cases.values():
        first = of_case[0]
        of_row = {key: first[key] for key in COLUMNS if key in first}
        of_row["rounds"] = sum(of_round["forward"] is not None for of_round in of_case)
        of_row["error"] = next((of_round["error"] for of_round in of_case if of_round["error"]), "")
        pairs = options.heads * first["tokens"] * (first["tokens"] + 1) // 2
        for name, factor in PASSES.items():
            rounds = [of_round[name] for of_round in of_case if of_round[name]]
            if not rounds:
                continue
            seconds = [each for seconds, _ in rounds for each in seconds]
            exposed = [exposed for _, exposed in rounds if exposed is not None]
            median = statistics.median(seconds)
            of_row |= {f"{name}_ms": median * 1e3, f"{name}_ms_min": min(seconds) * 1e3, f"{name}_ms_max": max(seconds) * 1e3,
                       f"{name}_tflops": factor * options.head_dim * pairs / median / options.gpus * 1e-12,
                       f"{name}_exposed_ms": statistics.median(exposed) * 1e3 if exposed else None}
        joined.append(of_row)
    return joined


def ours(options, nodes, scratch):
    """Rows of annulus-bench, and its JSON."""
    result = scratch.with_suffix(".json")
    per_node = options.ranks // nodes
    command = launch.on_ranks(options.mpirun, options.ranks, nodes)
    command += [options.bench, "attention", "--schedule", *options.schedules, "--layout", options.layout, "--mask", "causal",
                "--tokens", *options.tokens, "--heads", options.heads, "--head-dim", options.head_dim, "--dtype", "bf16",
                "--kernel", options.kernel, "--transport", "nccl", "--ranks-per-node", per_node, "--repetitions", options.repetitions,
                "--cluster", "none", "--json", result]
    ended = launch.run(command, scratch.with_suffix(".log"), options.time.limit())
    if not result.exists():
        return [row(options, nodes, 0, "Annulus", "", error="failed")], None, False
    report = json.loads(result.read_text())
    rows = []
    for case in report.get("cases", [report]):
        values = {name: (case[name]["seconds_each"], (case[name]["exposed_communication"] or {}).get("seconds")) for name in PASSES}
        label = f"{case['config']['schedule']}, {case['config']['layout']}"
        rows.append(row(options, nodes, case["config"]["tokens"], "Annulus", label, **values))
    for case in report.get("unsupported", []):
        rows.append(row(options, nodes, case["tokens"], "Annulus", f"{case['schedule']}, {case['layout']}", error=case["reason"]))
    return rows, report, ended


def theirs(options, nodes, scratch):
    """Rows of PyTorch's context_parallel, and its JSON."""
    result = scratch.with_suffix(".json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", options.ranks,
               HERE / "context_parallel.py", "--tokens", *options.tokens, "--heads", options.heads, "--head-dim", options.head_dim,
               "--nodes", nodes, "--rotations", *options.rotations, "--backends", *options.backends,
               "--repetitions", options.repetitions, "--out", result]
    ended = launch.run(command, scratch.with_suffix(".log"), options.time.limit())
    if not result.exists():
        return [row(options, nodes, 0, "PyTorch", "", error="failed")], None, False
    report = json.loads(result.read_text())
    rows = []
    for case in report["cases"]:
        values = {name: (case[name]["seconds_each"], case[name]["exposed_communication_seconds"]) if name in case else None for name in PASSES}
        rows.append(row(options, nodes, case["tokens"], "PyTorch", f"{case['rotation']}, {case['backend']}",
                        error=case.get("error", ""), **values))
    return rows, report, ended


def markdown(options, rows, reports):
    peer = next((report for program, report in reports if program == "PyTorch" and report), {})
    mine = next((report for program, report in reports if program == "Annulus" and report), {})
    versions = f"; PyTorch {peer['version']}, cuDNN {peer['cudnn']}, NCCL {peer['nccl']}" if peer else ""
    rows = over_rounds(options, rows)
    rounds = max((r["rounds"] for r in rows), default=0)
    often = f"{rounds} rounds in turns, {options.repetitions} repetitions each" if rounds > 1 else f"{options.repetitions} repetitions in one round, not repeated"
    turns = f"{options.ranks} ranks in turns on " if options.ranks > options.gpus else ""
    lines = [f"{turns}{options.gpus} × {peer.get('gpu', 'GPU')}, causal, bf16, {options.heads} heads, head_dim {options.head_dim}, batch 1; "
             f"{often}; Annulus git {mine.get('git_hash', '?')}{versions}; {datetime.date.today()}", "", "| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    number = lambda of_row, name, digits: "" if of_row.get(name) is None else f"{of_row[name]:.{digits}f}"  # noqa: E731
    ranged = lambda of_row, name: f"{number(of_row, name, 2)} ({number(of_row, f'{name}_min', 2)} to {number(of_row, f'{name}_max', 2)})"  # noqa: E731
    for r in sorted(rows, key=lambda r: (r["nodes"], r["tokens"], r["program"])):
        cells = [f"{r['nodes']} × {options.ranks // r['nodes']}", str(r["tokens"]), f"{r['program']}, {r['case']}"]
        if not r["rounds"]:
            lines.append("| " + " | ".join(cells) + f" | {r['error']} |" + " |" * 5)
            continue
        if r["error"]:
            cells[-1] += f" (in {r['rounds']} rounds; else: {r['error']})"
        for name in PASSES:
            cells += [ranged(r, f"{name}_ms"), number(r, f"{name}_tflops", 0), number(r, f"{name}_exposed_ms", 2)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    options = parse()
    results = launch.Results(options, markdown)
    programs = (() if options.without_pytorch else (("PyTorch", theirs),)) + (("Annulus", ours),)
    for nodes, number, (program, measure) in itertools.product(options.nodes, range(1, options.rounds + 1), programs):
        if options.time.spent():
            print(f"NOT RUN for want of time (--budget): {program}, {nodes} nodes, round {number}", file=sys.stderr, flush=True)
            results.good = False
            continue
        scratch = options.out.with_name(f"{options.out.name}-{program.lower()}-{nodes}-nodes-{number}")
        scratch.with_suffix(".json").unlink(missing_ok=True)
        rows, report, ended = measure(options, nodes, scratch)
        results.add(rows, (program, report), ended)
        with open(options.out.with_suffix(".csv"), "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            writer.writerows(over_rounds(options, results.rows))
    print(results.text, end="")
    return 0 if results.good else 1


if __name__ == "__main__":
    sys.exit(main())
