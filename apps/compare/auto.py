#!/usr/bin/env python3
"""Whether memory.recompute = "auto" takes what is fastest, and how near the planner's times and peaks come: predicted beside measured.

usage: auto.py --train build/cuda/bin/annulus-train --shards SHARDS --cluster data/clusters/h200.toml
               --file apps/compare/auto.toml | --settings 32768:80GiB 65536:139GiB … [--model data/llama-1b.toml]
               [--gpus 2] [--candidates 4] [--steps 4] [--out auto] [--continue missing|all]

A setting is a number of tokens and the memory that each GPU is to have, with --device cpu all ranks together. --file has settings of several
models with few layers, whose tokens are those of a rank. For each one annulus-train --plan-memory says what auto takes and what every
policy needs. Then runs of annulus-train measure what auto takes and, of the other policies of recompute that fit, the --candidates with
the least predicted time: of each policy the variant (chunks, offload) that is predicted to be fastest.

The time of a policy is the median of its sessions (--continue), with their range in brackets; the largest range of a policy is the noise.
`over best` is the time over that of the fastest policy of the setting. The exit status is 3 when all ran and in some setting what auto
takes is slower than the fastest by more than --within.
"""

import json
import pathlib
import statistics
import sys
import tomllib

import launch
import training

HEADINGS = ("setting", "tokens", "memory", "policy", "predicted s", "measured s", "measured / predicted", "predicted GiB", "arrays GiB", "over best")
KEYS = ("recompute", "store_fraction", "layers_without_recompute", "offload_activations", "chunk_rows", "offload_optimizer")


def parse():
    parser = training.parser(__doc__, "auto", sessions=True)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--settings", nargs="+", metavar="TOKENS:MEMORY", help="such as 65536:139GiB")
    which.add_argument("--file", type=pathlib.Path, help="settings as in apps/compare/auto.toml")
    parser.add_argument("--cluster", type=pathlib.Path, required=True, help="cluster file (annulus-bench links), from which times are predicted")
    parser.add_argument("--host-memory", default="512GiB", help="of the machine, for offload; with --device cpu settings say it")
    parser.add_argument("--candidates", type=int, default=4, help="policies beside that of auto, at most")
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first of several is not counted")
    parser.add_argument("--within", type=float, default=0.05, help="by which auto may be slower than the fastest")
    options = parser.parse_args()
    try:
        asked = [(int(tokens), memory) for tokens, memory in (setting.split(":") for setting in options.settings or ())]
    except ValueError:
        parser.error(f"--settings {' '.join(options.settings)}: give tokens and memory, such as 65536:139GiB")
    training.check(parser, options)
    options.settings = settings_in(options) if options.file else [
        {"setting": options.config.stem, "tokens": tokens, "limit": memory, "config": options.config, "keys": options.set} for tokens, memory in asked]
    return options


def settings_in(options):
    """Those of --file, for the ranks that there are. Keys of --set go over theirs."""
    with open(options.file, "rb") as text:
        return [{"setting": one["name"], "tokens": one["tokens"] * options.ranks, "limit": one["memory"], "config": training.DATA / one["model"],
                 "keys": [f"model.layers={one['layers']}", f"parallel.zero={3 if options.ranks > 1 else 0}", *options.set]} for one in tomllib.load(text)["setting"]]


def settings_of(memory):
    """A policy of the plan as keys of a configuration."""
    policy = memory["recompute"]
    values = {**memory, "recompute": policy[0] if len(policy) == 1 else policy}
    return [f"memory.{key}={values[key] if isinstance(values[key], str) else json.dumps(values[key])}" for key in KEYS]


def plan(options, setting, stem):
    """What --plan-memory says of a setting; None when it failed."""
    memory = setting["limit"]
    room = ["--gpu-memory", memory, "--host-memory", options.host_memory] if options.device == "gpu" else ["--host-memory", memory]
    keys = [f"run.device={options.device}", "memory.recompute=auto", "memory.chunk_rows=0", *setting["keys"]]
    return launch.plan_memory(options, setting["config"], options.ranks, options.ranks // options.nodes, options.cluster, setting["tokens"], keys, stem, room)[0]


def candidates(options, report):
    """What auto takes, then of the other policies of recompute the fastest variants that fit."""
    kinds = {}
    for policy in [report["configured"], *(policy for policy in report["policies"] if policy["fits"])]:  # the fastest first
        kinds.setdefault((str(policy["memory"]["recompute"]), policy["memory"]["store_fraction"]), policy)
    return list(kinds.values())[:options.candidates + 1]


def policies(rows):
    """Rows with all sessions of a policy in one, with its time and that time over the least of its setting."""
    rows = training.joined(rows)
    for of in launch.grouped(rows, lambda row: (row["setting"], row["tokens"], row["limit"])).values():
        measured = [row | {"median": statistics.median(row["sessions"])} for row in of if "seconds" in row]
        best = min((row["median"] for row in measured), default=None)
        yield from (row for row in of if "seconds" not in row)
        yield from (row | {"over": row["median"] / best} for row in measured)


def line(row):
    cells = [row["setting"], row["tokens"], row["limit"], row["case"]]
    if "predicted_seconds" not in row:
        return [*cells, row["error"]]
    predicted, peak = row["predicted_seconds"], f"{row['predicted_peak'] / launch.GIB:.2f}"
    if "seconds" not in row:
        return [*cells, f"{predicted:.3f}", row.get("error", "failed"), "", peak]
    measured = launch.with_range(row["sessions"], 3) if len(row["sessions"]) > 1 else f"{row['median']:.3f}"
    return [*cells, f"{predicted:.3f}", measured, f"{row['median'] / predicted:.3f}", peak, f"{row['arrays'] / launch.GIB:.2f}", f"{row['over']:.3f}"]


def markdown(options, rows, _):
    head, rows = launch.origin(rows), list(policies(rows))
    chosen = [row["over"] for row in rows if row["auto"] and "over" in row]
    spreads = [max(row["sessions"]) / min(row["sessions"]) - 1 for row in rows if len(row.get("sessions", ())) > 1]
    noise = f"Sessions of one policy differ by up to {max(spreads):.1%}." if spreads else "One session: noise is not known."
    return (head + f"{(options.file or options.config).name}, {options.ranks} ranks, {options.steps} steps a run, {options.cluster.name}\n\n" +
            launch.table(HEADINGS, map(line, rows)) + f"\nWhat auto takes is the fastest or within {options.within:.0%} of it in "
            f"{sum(over <= 1 + options.within for over in chosen)} of {len(chosen)} settings. {noise}\n")


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for number, setting in enumerate(options.settings, 1):
        more = {name: setting[name] for name in ("setting", "tokens", "limit")} | {"program": "Annulus"}
        report = plan(options, setting, options.runs / f"plan-{number}")
        if report is None or not report["configured"]["fits"]:
            results.add([more | {"case": "auto", "auto": True, "error": "nothing fits" if report else "no plan"}], report or {}, False)
            continue
        programs = []
        for index, policy in enumerate(candidates(options, report)):
            peaks = policy["predicted_peak_bytes"]
            programs.append((training.annulus, setting["tokens"], ("" if index else "auto: ") + policy["outline"], settings_of(policy["memory"]),
                             more | {"auto": index == 0, "predicted_seconds": policy["seconds"], "predicted_peak": peaks.get("device", peaks)["total"]}))
        here = launch.with_other(options, config=setting["config"], set=setting["keys"])
        training.run_all(here, results, programs, f"{number}-")
    return results.end(lambda rows: any(row["auto"] and row.get("over", 0) > 1 + options.within for row in policies(rows)))


if __name__ == "__main__":
    sys.exit(main())
