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

import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

import launch
import training

HEADINGS = ("tokens", "memory", "policy", "predicted s", "measured s", "measured / predicted", "predicted GiB", "arrays GiB", "over best")
KEYS = ("recompute", "store_fraction", "layers_without_recompute", "offload_activations", "chunk_rows", "offload_optimizer")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     parents=[training.common_parser()])
    parser.add_argument("--settings", nargs="+", required=True, metavar="TOKENS:MEMORY", help="such as 65536:139GiB")
    parser.add_argument("--cluster", type=pathlib.Path, required=True, help="cluster file (annulus-bench links), from which times are predicted")
    parser.add_argument("--host-memory", default="512GiB", help="of the machine, for offload; with --device cpu --settings say it")
    parser.add_argument("--candidates", type=int, default=4, help="policies beside that of auto, at most")
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first of several is not counted")
    parser.add_argument("--within", type=float, default=0.03, help="by which auto may be slower than the fastest")
    parser.set_defaults(out=pathlib.Path("auto"))
    options = parser.parse_args()
    options.settings = [split_setting(parser, setting) for setting in options.settings]
    if not options.cluster.is_file():
        parser.error(f"--cluster {options.cluster} is no file: annulus-bench links --output makes one")
    training.check(parser, options)
    return options


def split_setting(parser, setting):
    tokens, _, memory = setting.partition(":")
    if not tokens.isdigit() or not memory:
        parser.error(f"--settings {setting}: give tokens and memory, such as 65536:139GiB")
    return int(tokens), memory


def settings_of(memory):
    """A policy of the plan as keys of a configuration."""
    text = lambda value: value if isinstance(value, str) else json.dumps(value)  # noqa: E731
    policy = memory["recompute"]
    values = {**memory, "recompute": policy[0] if len(policy) == 1 else policy}
    return [f"memory.{key}={text(values[key])}" for key in KEYS]


def plan(options, tokens, memory, stem):
    """What --plan-memory says of a setting; None when it failed."""
    file, log = stem.with_suffix(".json"), stem.with_suffix(".log")
    room = ["--gpu-memory", memory, "--host-memory", options.host_memory] if options.device == "gpu" else ["--host-memory", memory]
    keys = [f"run.device={options.device}", f"data.sequence_length={tokens}", "attention.mask=causal", "checkpoint.every=0",
            "train.micro_batches=1", "memory.recompute=auto", "memory.chunk_rows=0", *options.set]
    command = [options.train, options.config, "--plan-memory", "--ranks", options.ranks, "--ranks-per-node", options.ranks // options.nodes, *room,
               "--cluster", options.cluster, "--json", file, *(part for key in keys for part in ("--set", key))]
    print(f"# {shlex.join(map(str, command))}", file=sys.stderr, flush=True)
    with open(log, "w") as output:
        subprocess.run(list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, timeout=options.limit)
    if not file.exists():
        training.report_failure(log)
        return None
    return json.loads(file.read_text())


def candidates(options, report):
    """What auto takes, then of the other policies of recompute the fastest variants that fit."""
    chosen = report["configured"]
    kind = lambda policy: (policy["memory"]["recompute"], policy["memory"]["store_fraction"])  # noqa: E731
    seen, others = [kind(chosen)], []
    for policy in report["policies"]:  # the fastest first
        if policy["fits"] and kind(policy) not in seen:
            seen.append(kind(policy))
            others.append(policy)
    return [chosen, *others[:options.candidates]]


def peak(policy):
    bytes_of = policy["predicted_peak_bytes"]
    return bytes_of.get("device", bytes_of)["total"]


def seconds(row):
    return statistics.median(training.counted(row["seconds"]))


def best_of(rows, row):
    """Of the rows of the same setting the least time; None where none was measured."""
    times = [seconds(other) for other in rows if "seconds" in other and (other["tokens"], other["limit"]) == (row["tokens"], row["limit"])]
    return min(times, default=None)


def markdown(options, rows, _):
    lines, inside, settings = [], 0, 0
    for row in rows:
        cells = [row["tokens"], row["limit"], row["case"]]
        if "predicted_seconds" not in row:
            lines.append([*cells, *[row.get("error", "failed")], *[""] * 5])
            continue
        cells.append(f"{row['predicted_seconds']:.3f}")
        if "seconds" in row:
            over = seconds(row) / best_of(rows, row)
            if row["auto"]:
                settings += 1
                inside += over <= 1 + options.within
            cells += [f"{seconds(row):.3f}", f"{seconds(row) / row['predicted_seconds']:.3f}", f"{row['predicted_peak'] / training.GIB:.2f}",
                      f"{row['arrays'] / training.GIB:.2f}", f"{over:.3f}"]
        else:
            cells += [row.get("error", "failed"), "", f"{row['predicted_peak'] / training.GIB:.2f}", "", ""]
        lines.append(cells)
    text = f"{options.config.name}, {options.ranks} ranks, {options.steps} steps a run, {options.cluster.name}\n\n"
    text += training.markdown_table(HEADINGS, lines)
    return text + f"\nWhat auto takes is the fastest or within {options.within:.0%} of it in {inside} of {settings} settings.\n"


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for number, (tokens, memory) in enumerate(options.settings, 1):
        more = {"tokens": tokens, "limit": memory, "program": "Annulus"}
        report = None if options.time.spent() else plan(options, tokens, memory, options.runs / f"plan-{number}")
        if report is None or not report["configured"]["fits"]:
            error = "nothing fits" if report else "no plan"
            results.add([more | {"case": "auto", "auto": True, "error": error}], report or {}, False)
            continue
        programs = [(training.annulus, tokens, (("auto: " if index == 0 else "") + policy["outline"], settings_of(policy["memory"])),
                     more | {"auto": index == 0, "predicted_seconds": policy["seconds"], "predicted_peak": peak(policy)})
                    for index, policy in enumerate(candidates(options, report))]
        training.run_all(options, results, programs, f"{number}-")
    print(results.text, end="")
    if not results.good:
        return 1
    slow = [row for row in results.rows if row["auto"] and seconds(row) > (1 + options.within) * best_of(results.rows, row)]
    return 3 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
