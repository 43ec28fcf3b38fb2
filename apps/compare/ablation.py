#!/usr/bin/env python3
"""What each technique brings: the tables of BurstEngine (arXiv 2509.19836, section 4) with one model on the GPUs of one machine.

usage: ablation.py --train build/cuda/bin/annulus-train --shards SHARDS [--model data/llama-7b.toml] [--gpus 2] [--tokens 131072]
                   [--tables 2 3 5 12] [--steps 2] [--out ablation]

  2    one technique more in every row: the backward pass that moves queries (burst), the schedule that knows the nodes, overlap
       of transfers and compute, the LM head in tiles, sequence-selective recompute; then selective recompute in its place
  3    masks: full (in training its cost alone: tokens see what they are to predict), causal, a window of a 32nd of the sequence
  5    context-parallel groups of 1, 2, 4, … of the ranks, each with its share of --tokens; the model's state in shards over all ranks
  12   schedules, as Figures 12 and 13: speed and memory

Each row is a run of annulus-train as in training.py, which explains the columns; `speedup` is tokens/s over those of the table's first row. With
--nodes the ranks lie on emulated nodes, between which NCCL takes loopback sockets: without them topology-burst is burst. What a
schedule does not take (ulysses more ranks than heads, hybrid two ranks) is told by the run and stands as failed. Settings of --set
hold for all rows, those of the row go over them.

Two H200 with the model of 7 billion parameters, 131072 tokens and 2 steps need some 8 minutes for table 2, 4 for 3 and 5, 7 for 12.
Writes <out>.md and <out>.json after every run; the tables go to stdout, too.
"""

import sys

import launch
import training

TITLES = {"2": "Techniques, one by one (BurstEngine, Table 2)", "3": "Masks (Table 3)", "5": "Context-parallel groups (Table 5)",
          "12": "Schedules (Figures 12 and 13)"}


def techniques(options):
    """Keys that add up from row to row."""
    logits_whole = f"memory.lm_head_rows={options.tokens}"
    rows = [("none of these: ring, no overlap, logits whole, full recompute",
             ["attention.schedule=ring", "attention.overlap=false", logits_whole, "memory.recompute=full"]),
            ("+ backward pass that moves queries (burst)", ["attention.schedule=burst"]),
            ("+ schedule that knows the nodes (topology-burst)", ["attention.schedule=topology-burst"]),
            ("+ overlap", ["attention.overlap=true"]),
            ("+ LM head and loss in tiles", ["memory.lm_head_rows=0"]),
            ("+ sequence-selective recompute", ["memory.recompute=sequence-selective", f"memory.store_fraction={options.store_fraction}"]),
            ("selective recompute in its place", ["memory.recompute=selective"])]
    keys, cases = {}, []
    for name, added in rows:
        keys |= dict(key.split("=", 1) for key in added)
        if keys["memory.recompute"] != "sequence-selective":
            keys.pop("memory.store_fraction", None)
        cases.append((options.tokens, name, [f"{key}={value}" for key, value in keys.items()]))
    return cases


def masks(options):
    recompute = "memory.recompute=selective"  # sequence-selective is for causal masks
    window = f"causal+window:{options.tokens // 32 - 1},0"
    return [(options.tokens, name, [f"attention.mask={mask}", recompute, *more])
            for name, mask, more in (("full", "full", ["attention.see_targets=true"]), ("causal", "causal", []), (window, window, []))]


def groups(options):
    return [(options.tokens * context // options.ranks, f"groups of {context}", [f"parallel.context={context}"])
            for context in (2**i for i in range(options.ranks.bit_length())) if options.ranks % context == 0]


def schedules(options):
    names = ["ring", "burst", "topology-burst", "double-ring", "all-gather", "ulysses"]
    if options.ranks % 2 == 0 and options.ranks > 2:
        names.append(f"hybrid:2x{options.ranks // 2}")
    return [(options.tokens, name, [f"attention.schedule={name}"]) for name in names]


TABLES = {"2": techniques, "3": masks, "5": groups, "12": schedules}


def parse():
    parser = training.parser(__doc__, "ablation")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--tokens", type=int, default=131072, help="of a sequence; in table 5 of all groups together")
    parser.add_argument("--store-fraction", type=float, default=0.5, help="memory.store_fraction of sequence-selective recompute")
    parser.add_argument("--steps", type=int, default=2, help="of each run; the first of several is not counted")
    options = parser.parse_args()
    training.check(parser, options)
    return options


def markdown(options, rows, _):
    """A section for each table; a speedup stands where the first row has a speed."""
    speed = lambda row: training.tokens_per_second(options, row) if "seconds" in row else None  # noqa: E731
    text = []
    for table in options.tables:
        of_table = [row for row in rows if row["table"] == table]
        lines = []
        for row in of_table:
            tokens, _, *rest = training.cells(options, row)
            rest += [""] * (len(training.HEADINGS) - 2 - len(rest))
            lines.append([tokens, *rest, f"{speed(row) / speed(of_table[0]):.2f}" if speed(row) and speed(of_table[0]) else ""])
        tokens, _, *headings = training.HEADINGS
        text += [f"### {TITLES[table]}\n\n" + launch.table([tokens, *headings, "speedup"], lines)] if lines else []
    machine = f"{options.ranks} ranks on {options.gpus} {'GPUs' if options.device == 'gpu' else 'shares of the host'}"
    nodes = f", {options.nodes} emulated nodes" if options.nodes > 1 else ""
    return f"{options.config.name}, {machine}{nodes}, {options.steps} steps a row\n\n" + "\n".join(text)


def main():
    options = parse()
    results = launch.Results(options, markdown)
    training.run_all(options, results, [(training.annulus, *case, {"table": table}) for table in options.tables for case in TABLES[table](options)])
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
