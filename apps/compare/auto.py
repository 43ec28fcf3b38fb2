#!/usr/bin/env python3
"""Whether memory.recompute = "auto" takes what is fastest, and how near the planner's times and peaks come: predicted beside measured.

usage: auto.py --train build/cuda/bin/annulus-train --shards SHARDS --cluster data/clusters/h200.toml
               --settings 32768:80GiB 65536:139GiB … [--model data/llama-1b.toml] [--gpus 2] [--candidates 4] [--steps 4] [--out auto]

A setting is a number of tokens and the memory that each GPU is to have, with --device cpu all ranks together. For each one annulus-train
--plan-memory says what auto takes and what every policy needs. Then runs of annulus-train measure what auto takes and, of the
other policies of recompute that fit, the --candidates with the least predicted time: of each policy the variant (chunks, offload) that is
predicted to be fastest.

Writes <out>.md and <out>.json after every program; the table goes to stdout, too. `over best` is the measured time over that of the
fastest policy of the setting. The exit status is 1 when a program failed, and 3 when all ran and in some setting what auto takes
is slower than the fastest by more than --within.
"""

import json
import pathlib
import statistics
import sys

import launch
import training

HEADINGS = ("tokens", "memory", "policy", "predicted s", "measured s", "measured / predicted", "predicted GiB", "arrays GiB", "over best")
KEYS = ("recompute", "store_fraction", "layers_without_recompute", "offload_activations", "chunk_rows", "offload_optimizer")


def parse():
    parser = training.parser(__doc__, "auto")
    parser.add_argument("--settings", nargs="+", required=True, metavar="TOKENS:MEMORY", help="such as 65536:139GiB")
    parser.add_argument("--cluster", type=pathlib.Path, required=True, help="cluster file (annulus-bench links), from which times are predicted")
    parser.add_argument("--host-memory", default="512GiB", help="of the machine, for offload; with --device cpu --settings say it")
    parser.add_argument("--candidates", type=int, default=4, help="policies beside that of auto, at most")
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first of several is not counted")
    parser.add_argument("--within", type=float, default=0.03, help="by which auto may be slower than the fastest")
    options = parser.parse_args()
    try:
        options.settings = [(int(tokens), memory) for tokens, memory in (setting.split(":") for setting in options.settings)]
    except ValueError:
        parser.error(f"--settings {' '.join(options.settings)}: give tokens and memory, such as 65536:139GiB")
    training.check(parser, options)
    return options


def settings_of(memory):
    """A policy of the plan as keys of a configuration."""
    policy = memory["recompute"]
    values = {**memory, "recompute": policy[0] if len(policy) == 1 else policy}
    return [f"memory.{key}={values[key] if isinstance(values[key], str) else json.dumps(values[key])}" for key in KEYS]


def plan(options, tokens, memory, stem):
    """What --plan-memory says of a setting; None when it failed."""
    room = ["--gpu-memory", memory, "--host-memory", options.host_memory] if options.device == "gpu" else ["--host-memory", memory]
    keys = [f"run.device={options.device}", f"data.sequence_length={tokens}", "attention.mask=causal", "checkpoint.every=0",
            "train.micro_batches=1", "memory.recompute=auto", "memory.chunk_rows=0", *options.set]
    return launch.plan_memory(options, options.config, options.ranks, options.ranks // options.nodes, options.cluster, keys, stem, room)[0]


def candidates(options, report):
    """What auto takes, then of the other policies of recompute the fastest variants that fit."""
    kinds = {}
    for policy in [report["configured"], *(policy for policy in report["policies"] if policy["fits"])]:  # the fastest first
        kinds.setdefault((str(policy["memory"]["recompute"]), policy["memory"]["store_fraction"]), policy)
    return list(kinds.values())[:options.candidates + 1]


def seconds(row):
    return statistics.median(training.counted(row["seconds"]))


def over_best(rows, row):
    """The time of a row over the least of those of its setting; None where it was not measured."""
    same = [seconds(other) for other in rows if "seconds" in other and (other["tokens"], other["limit"]) == (row["tokens"], row["limit"])]
    return seconds(row) / min(same) if "seconds" in row else None


def markdown(options, rows, _):
    lines = []
    for row in rows:
        line = [row["tokens"], row["limit"], row["case"]]
        if "predicted_seconds" not in row:
            lines.append([*line, row["error"]])
            continue
        measured = [row.get("error", "failed"), ""] if "seconds" not in row else [f"{seconds(row):.3f}", f"{seconds(row) / row['predicted_seconds']:.3f}"]
        found = [] if "seconds" not in row else [f"{row['arrays'] / launch.GIB:.2f}", f"{over_best(rows, row):.3f}"]
        lines.append([*line, f"{row['predicted_seconds']:.3f}", *measured, f"{row['predicted_peak'] / launch.GIB:.2f}", *found])
    chosen = [over_best(rows, row) for row in rows if row["auto"] and "seconds" in row]
    return (f"{options.config.name}, {options.ranks} ranks, {options.steps} steps a run, {options.cluster.name}\n\n" + launch.table(HEADINGS, lines) +
            f"\nWhat auto takes is the fastest or within {options.within:.0%} of it in {sum(over <= 1 + options.within for over in chosen)} of {len(chosen)} settings.\n")


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for number, (tokens, memory) in enumerate(options.settings, 1):
        more = {"tokens": tokens, "limit": memory, "program": "Annulus"}
        report = plan(options, tokens, memory, options.runs / f"plan-{number}")
        if report is None or not report["configured"]["fits"]:
            results.add([more | {"case": "auto", "auto": True, "error": "nothing fits" if report else "no plan"}], report or {}, False)
            continue
        programs = []
        for index, policy in enumerate(candidates(options, report)):
            peaks = policy["predicted_peak_bytes"]
            programs.append((training.annulus, tokens, ("" if index else "auto: ") + policy["outline"], settings_of(policy["memory"]),
                             more | {"auto": index == 0, "predicted_seconds": policy["seconds"], "predicted_peak": peaks.get("device", peaks)["total"]}))
        training.run_all(options, results, programs, f"{number}-")
    return results.end(lambda rows: any(row["auto"] and over_best(rows, row) > 1 + options.within for row in rows))


if __name__ == "__main__":
    sys.exit(main())
