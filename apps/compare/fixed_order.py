#!/usr/bin/env python3
"""What the fixed order of sums (attention.deterministic) costs in a whole optimizer step, in one go and in one table.

usage: fixed_order.py --train build/cuda/bin/annulus-train --shards SHARDS --gpus 4 [--case 'NAME: KEY=VALUE …' …] [--turns 2] [--out fixed-order]

Each case runs in any order, in the fixed order, in any order, … --turns times. A key `config` names the configuration of a case.
Models have --layers layers, so that a run is short. Columns: the median step of all runs in any order and of all in the fixed order, the
ratio of the two, the largest ratio of two runs in the same order (the spread of the machine), and the seconds in which attention waited for
other ranks in either. Losses of the runs in the fixed order must be equal bit by bit: the table says so.
The exit status is 1 when a run failed, did not run for want of time (--budget), or gave other losses.
"""

import argparse
import itertools
import statistics
import sys

import launch
import training

CASES = [f"{model}, {layout}, {tokens}: config={file} attention.layout={layout} data.sequence_length={tokens}"
         for model, file in (("7B", "llama-7b.toml"), ("8B", "llama-3.1-8b.toml")) for tokens in (131072, 32768) for layout in ("zigzag", "striped")]
CASES += [f"1B, zigzag, {tokens}: config=llama-1b.toml attention.layout=zigzag data.sequence_length={tokens}" for tokens in (131072, 8192)]
CASES += [f"7B, {name}, 131072: config=llama-7b.toml data.sequence_length=131072 {keys}" for name, keys in (
    ("documents", "attention.layout=zigzag attention.mask=documents"),
    ("window 4096", "attention.layout=striped attention.mask=window:4095,0"),
    ("vertical-slash", "attention.layout=block-striped:64 attention.sparsity=vertical-slash:recall=0.9"))]
ORDERS = {"any": "attention.deterministic=false", "fixed": "attention.deterministic=true"}


def parse():
    made = training.parser(__doc__, "fixed-order")
    made.add_argument("--case", nargs="+", default=CASES, metavar="'NAME: KEY=VALUE …'", help="keys of the configuration")
    made.add_argument("--turns", type=int, default=2, help="runs of a case in each order")
    made.add_argument("--steps", type=int, default=4, help="of each run; the first is not counted")
    made.add_argument("--layers", type=int, default=8, help="of every model")
    options = made.parse_args()
    if options.turns < 1 or options.steps < 2:
        made.error("give --turns of 1 or more and --steps of 2 or more")
    options.case = training.split_cases(made, options.case)
    training.check(made, options)
    options.set = [f"parallel.zero={3 if options.ranks > 1 else 0}", "memory.recompute=selective", "train.warmup_steps=1", f"model.layers={options.layers}", *options.set]
    return options


def line(rows):
    """A line of the table from the rows of one case."""
    runs = {order: [row for row in rows if row["order"] == order and "seconds" in row] for order in ORDERS}
    if not all(runs.values()):
        return [rows[0]["case"], *[rows[-1].get("error", "failed")] * 2, "", "", "", ""]
    medians = {order: [statistics.median(row["seconds"][1:]) for row in found] for order, found in runs.items()}
    exposed = [statistics.median(seconds for row in found for seconds in row["exposed"][1:]) for found in runs.values()]
    spread = max(max(found) / min(found) for found in medians.values())
    any_order, fixed = (statistics.median(found) for found in medians.values())
    same = len({tuple(row["losses"]) for row in runs["fixed"]}) == 1
    return [rows[0]["case"], f"{any_order:.3f}", f"{fixed:.3f}", f"{fixed / any_order:.3f}", f"{spread:.3f}",
            " / ".join(f"{seconds:.2f}" for seconds in exposed), "equal" if same else "**differ**"]


def markdown(options, rows, _):
    headings = ("case", "any order, s", "fixed, s", "fixed : any", "spread", "exposed, s", "losses")
    return launch.table(headings, [line(list(case)) for _, case in itertools.groupby(rows, lambda row: row["case"])])


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for number, (name, keys) in enumerate(options.case):
        configs = [key.partition("=")[2] for key in keys if key.startswith("config=")]
        chosen = argparse.Namespace(**vars(options) | ({"config": training.DATA / configs[-1]} if configs else {}))
        keys = [key for key in keys if not key.startswith("config=")]
        tokens = next((int(key.partition("=")[2]) for key in reversed(keys) if key.startswith("data.sequence_length=")), 131072)
        training.run_all(chosen, results, [(training.annulus, tokens, name, [*keys, deterministic], {"order": order})
                                            for _ in range(options.turns) for order, deterministic in ORDERS.items()], prefix=f"{number}-")
    return results.end() or int("differ" in results.text)


if __name__ == "__main__":
    sys.exit(main())
