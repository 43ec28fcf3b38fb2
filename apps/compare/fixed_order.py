#!/usr/bin/env python3
"""What the fixed order of sums (attention.deterministic) costs in a whole optimizer step, in one go and in one table.

usage: fixed_order.py --train build/cuda/bin/annulus-train --shards SHARDS --gpus 4 [--case 'NAME: KEY=VALUE …' …] [--turns 4] [--out fixed-order]

Each case runs in any order, in the fixed order, in any order, … --turns times. A key `config` names the configuration of a case.
Models have --layers layers, so that a run is short. Columns: the median step of all runs in any order and of all in the fixed order, the
ratio of the two, the largest ratio of two runs in the same order (the spread of the machine), and the seconds in which attention waited for
other ranks in either. Losses of the runs in the fixed order must be equal bit by bit: the table says so.
The exit status is 1 when a run gave other losses, too. With --continue missing the same command makes the turns that are missing: the table of
hours in commands of minutes.
"""

import statistics
import sys

import launch
import training

MODELS = {"1B": "llama-1b.toml", "7B": "llama-7b.toml", "8B": "llama-3.1-8b.toml"}
# (models, tokens, names and keys of what differs)
TABLE = ((("7B", "8B"), (131072, 32768), {f"{layout}{more}": f"attention.layout={layout}{keys}" for layout in ("zigzag", "striped")
                                         for more, keys in (("", ""), (", documents", " attention.mask=documents"))}),
         (("1B",), (131072, 8192), {"zigzag": "attention.layout=zigzag"}),
         (("7B",), (131072,), {"window 4096": "attention.layout=striped attention.mask=window:4095,0",
                               "vertical-slash": "attention.layout=block-striped:64 attention.sparsity=vertical-slash:recall=0.9"}))
CASES = [f"{model}, {name}, {number}: config={MODELS[model]} data.sequence_length={number} {keys}"
         for models, tokens, differing in TABLE for model in models for number in tokens for name, keys in differing.items()]
ORDERS = {"any": "attention.deterministic=false", "fixed": "attention.deterministic=true"}


def parse():
    made = training.parser(__doc__, "fixed-order", CASES, sessions=True)
    made.add_argument("--turns", type=int, default=4, help="runs of a case in each order")
    made.add_argument("--steps", type=int, default=4, help="of each run; the first is not counted")
    made.add_argument("--layers", type=int, default=8, help="of every model")
    options = made.parse_args()
    if options.turns < 1 or options.steps < 2:
        made.error("give --turns of 1 or more and --steps of 2 or more")
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
    return launch.origin(rows) + launch.table(headings, map(line, launch.grouped(rows, lambda row: row["case"]).values()))


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for number, (name, keys) in enumerate(options.case):
        config, tokens = launch.value_of(keys, "config"), int(launch.value_of(keys, "data.sequence_length", 131072))
        chosen = launch.with_other(options, config=training.DATA / config if config else options.config)
        keys = [key for key in keys if not key.startswith("config=")]
        training.run_all(chosen, results, [(training.annulus, tokens, name, [*keys, deterministic], {"order": order, "turn": str(turn)})
                                           for turn in range(options.turns) for order, deterministic in ORDERS.items()], prefix=f"{number}-")
    return results.end() or int("differ" in results.text)


if __name__ == "__main__":
    sys.exit(main())
