#!/usr/bin/env python3
"""annulus-bench attention beside PyTorch's context_parallel, in one go and in one table.

usage: attention.py --bench build/cuda/bin/annulus-bench [--gpus N] [--tokens 131072 262144] [--out comparison]

Causal attention, bf16, batch 1, over NCCL, on N GPUs of this machine (all by default), and where N is even on the same
GPUs as 2 nodes of N / 2, which NCCL is made to see (NCCL_HOSTID; between them loopback sockets). With --ranks there are
more ranks than GPUs, on nodes that have the same GPUs: ranks take turns on them, which compares schedules, not speeds.
Each program runs alone. With --rounds they run in turns, one after the other and again, since what else the machine and
its network do changes from one minute to the next: a difference is one where the ranges of several rounds do not overlap.
Writes <out>.csv, too. With --continue missing the same command runs the rounds that are missing; one round has all of --tokens.

Times are the slowest rank's, from a barrier on: the median over the repetitions of all rounds, and (smallest to largest).
Exposed: seconds in which communication holds up compute, mean of the ranks, median of the rounds; ours as the executor
measures it, PyTorch's from a profiled pass (context_parallel.py). TFLOP/s count 4 · head_dim operations for each unmasked pair and head forward, 10 · head_dim
backward.
"""

import itertools
import os
import statistics
import sys

import launch

PASSES = {"forward": 4, "backward": 10}  # operations of an unmasked pair, in units of head_dim
COLUMNS = ("nodes", "ranks", "gpus", "tokens", "program", "case", "rounds",
           *(f"{name}_{column}" for name in PASSES for column in ("ms", "ms_min", "ms_max", "tflops", "exposed_ms")), "error")
HEADINGS = ("nodes × ranks", "tokens", "", "forward ms", "TFLOP/s a GPU", "exposed ms", "backward ms", "TFLOP/s a GPU", "exposed ms")


def parse():
    parser = launch.parser(__doc__, "annulus-bench", "comparison", sessions=True)
    parser.add_argument("--gpus", type=int, default=0, help="0: all of this machine")
    parser.add_argument("--ranks", type=int, default=0, help="0: one a GPU")
    parser.add_argument("--nodes", type=int, nargs="+", help="machines that this one stands for, one after the other; 1, and 2 where "
                        "the ranks are even, by default")
    parser.add_argument("--tokens", type=int, nargs="+", default=[131072, 262144], help="of the whole sequence")
    parser.add_argument("--schedules", nargs="+", default=["ring", "double-ring", "topology-burst"])
    launch.attention_options(parser, dtype=None, layout="zigzag")
    parser.add_argument("--kernel", default="automatic")
    parser.add_argument("--rotations", nargs="+", default=["allgather", "alltoall"], help="of PyTorch")
    parser.add_argument("--without-pytorch", action="store_true", help="measure Annulus alone")
    parser.add_argument("--rounds", type=int, default=1, help="times that the programs run in turns")
    options = parser.parse_args()
    here = launch.deal(parser, options)
    launch.check(parser, options)
    fewest = -(-options.ranks // options.gpus)
    options.nodes = options.nodes or [nodes for nodes in (1, 2) if nodes >= fewest and options.ranks % nodes == 0] or [fewest]
    launch.check_nodes(parser, options, options.nodes)
    options.made = launch.made_by(options)
    launch.check_card(parser, options)
    if options.gpus < here:  # programs deal their ranks over all GPUs that they see
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(launch.visible_gpus(parser)[:options.gpus])
    return options


def cases_of(report):
    """(tokens, case, seconds and exposed seconds by pass, error) of each case, of either program."""
    named = lambda config: (config["tokens"], f"{config['schedule']}, {config['layout']}")  # noqa: E731
    cases = [(*named(case["config"]), {name: (case[name]["seconds_each"], case[name]["exposed_communication"]["seconds"]) for name in PASSES}, "")
             for case in launch.cases_of(report)]
    return cases + [(*named(case), {}, case["reason"]) for case in (report or {}).get("unsupported", [])]


def ours(options, nodes, stem, **more):
    """What a round of annulus-bench gave: its JSON, whether it ended well, and its cases. `more`: options of it, over these."""
    words = {"schedule": options.schedules, "layout": options.layout, "mask": "causal", "tokens": options.tokens, "heads": options.heads,
             "head_dim": options.head_dim, "dtype": "bf16", "kernel": options.kernel, "transport": "nccl", "ranks_per_node": options.ranks // nodes,
             "repetitions": options.repetitions, "cluster": "none"}
    report, ended = launch.bench(options, launch.on_ranks(options, nodes), "attention", stem, **words | more)
    return report, ended, cases_of(report)


def theirs(options, nodes, stem):
    """The same of PyTorch's context_parallel."""
    words = {name: getattr(options, name) for name in ("tokens", "heads", "head_dim", "rotations", "repetitions")} | {"nodes": nodes}
    report, ended = launch.measured([*launch.torchrun(options.ranks, "context_parallel.py"), *launch.said(words), "--out"], stem, launch.limit(options))
    return report, ended, cases_of(report)


def over_rounds(options, rows):
    """The rows of all rounds, those of one case made one, in the order of the first round."""
    joined = []
    for of_case in launch.grouped(rows, lambda of_round: tuple(of_round[key] for key in ("nodes", "tokens", "program", "case"))).values():
        row = {key: value for key, value in of_case[0].items() if key in COLUMNS}
        row |= {"rounds": sum(bool(of_round["passes"]) for of_round in of_case),
                "error": next((of_round["error"] for of_round in of_case if of_round["error"]), "")}
        pairs = options.heads * row["tokens"] * (row["tokens"] + 1) // 2
        for name, factor in PASSES.items():
            rounds = [of_round["passes"][name] for of_round in of_case if name in of_round["passes"]]
            if not rounds:
                continue
            seconds = [each for of_round, _ in rounds for each in of_round]
            median = statistics.median(seconds)
            row |= {f"{name}_ms": median * 1e3, f"{name}_ms_min": min(seconds) * 1e3, f"{name}_ms_max": max(seconds) * 1e3,
                    f"{name}_tflops": factor * options.head_dim * pairs / median / options.gpus * 1e-12,
                    f"{name}_exposed_ms": statistics.median(exposed for _, exposed in rounds) * 1e3}
        joined.append(row)
    return joined


def markdown(options, rows, reports):
    peer = launch.first_of(reports, "PyTorch")
    versions = f"; PyTorch {peer['version']}, cuDNN {peer['cudnn']}, NCCL {peer['nccl']}" if peer else ""
    turns = f"{options.ranks} ranks in turns; " if options.ranks > options.gpus else ""
    text = launch.origin(rows) + (f"{turns}causal, bf16, {options.heads} heads, head_dim {options.head_dim}, batch 1; "
                                  f"{options.rounds} rounds in turns, {options.repetitions} repetitions each{versions}\n\n")
    lines = []
    for row in sorted(over_rounds(options, rows), key=lambda row: (row["nodes"], row["tokens"], row["program"])):
        line = [f"{row['nodes']} × {options.ranks // row['nodes']}", row["tokens"], f"{row['program']}, {row['case']}"]
        if row["error"] and row["rounds"]:
            line[-1] += f" (in {row['rounds']} rounds; else: {row['error']})"
        elif row["error"]:
            line.append(row["error"])
        for name in PASSES if row["rounds"] else ():
            line += [f"{row[f'{name}_ms']:.2f} ({row[f'{name}_ms_min']:.2f} to {row[f'{name}_ms_max']:.2f})", f"{row[f'{name}_tflops']:.0f}",
                     f"{row[f'{name}_exposed_ms']:.2f}"]
        lines.append(line)
    return text + launch.table(HEADINGS, lines)


def main():
    options = parse()
    results = launch.Results(options, markdown, COLUMNS, over_rounds, lambda row: row["whole"])
    programs = ([] if options.without_pytorch else [("PyTorch", theirs)]) + [("Annulus", ours)]
    for nodes, number, (program, measure) in itertools.product(options.nodes, range(1, options.rounds + 1), programs):
        common = {"nodes": nodes, "ranks": options.ranks, "gpus": options.gpus, "program": program, "round": number}
        if not any(results.lacks(common | {"tokens": tokens}) for tokens in options.tokens):
            continue
        if launch.limit(options):
            report, ended, cases = measure(options, nodes, options.out.with_name(f"{options.out.name}-{program.lower()}-{nodes}-nodes-{number}"))
        else:
            print(f"NOT RUN for want of time (--budget): {program}, {nodes} nodes, round {number}", file=sys.stderr, flush=True)
            report, ended, cases = None, False, []
        cases, whole = cases or [(0, "", {}, "failed")], ended and report is not None
        results.add([common | {"tokens": tokens, "case": case, "passes": passes, "error": error, "whole": whole} for tokens, case, passes, error in cases],
                    (program, report), whole)
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
