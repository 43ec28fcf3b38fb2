#!/usr/bin/env python3
"""Models trained with each of several selections, evaluated with each of them: what sparse attention costs in training and in use.

usage: matrix.py --train build/cpu/bin/annulus-train CONFIG --shards HELD-OUT [--attention dense PATTERN …] [--samples FOLDER]
                 [--set KEY=VALUE …] [--length N] [--windows N] [--ranks 2] [--runs runs/matrix] [--out matrix]

Trains CONFIG once for each --attention, in folders of --runs (the same command goes on where it was cut off), then evaluates every model with
every --attention: `dense`, or what attention.sparsity takes. annulus-eval, beside annulus-train, writes <out>.json, <out>.csv and <out>.html of the
losses on --shards, and <out>-retrieval.* of --samples (annulus-eval make). The tables go to stdout and to <out>.md: losses of models (rows) by
the attention of the evaluation (columns), then shares of samples that were answered, then what each run says of itself (sparse_training.py). The exit status is 1 when a program failed.
"""

import pathlib
import re

import launch
import sparse_training
import training


def parse():
    parser = launch.parser(__doc__, "annulus-train", "matrix", page=False)
    parser.add_argument("config", help="TOML file of the runs")
    parser.add_argument("--attention", nargs="+", default=["dense", "vertical-slash:recall=0.9,window=64"])
    parser.add_argument("--shards", required=True, help="token shards to evaluate on")
    parser.add_argument("--samples", help="folder that annulus-eval make has made")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys of the runs")
    parser.add_argument("--length", help="tokens of a window of the evaluation; without it that of training")
    parser.add_argument("--windows", help="at most so many of these, evenly spread; without it all")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", default="runs/matrix", help="folder of the runs")
    options = parser.parse_args()
    launch.check(parser, options)
    return options


def selection(attention):
    return "" if attention == "dense" else attention


def train(options, attention):
    """Returns the folder of the run."""
    folder = f"{options.runs}/{re.sub('[^A-Za-z0-9.]+', '-', attention)}"
    settings = [*options.set, f"attention.sparsity={selection(attention)}", f"run.folder={folder}"]
    log = options.out.with_name(f"{options.out.name}-{folder.split('/')[-1]}.log")
    launch.finish(options, [*launch.on_ranks(options, 1), options.program, options.config, "--set", *settings], log)
    return folder


def evaluate(options, command, folders, name, more):
    """The cells of a table of models by attentions: evaluations as annulus-eval writes them."""
    stem = options.out.with_name(options.out.name + name)
    attentions = [word for attention in options.attention for word in ("--sparsity", attention)]
    found = launch.evaluate(options, command, folders, [*attentions, *more, "--csv", f"{stem}.csv"], stem)
    return {(one["model"], one["sparsity"]): one for one in found}


def table(options, folders, cells, value):
    headings = ["trained with, evaluated with", *options.attention]
    rows = [[trained, *(f"{value(cells[folder, selection(used)]):.4f}" for used in options.attention)]
            for trained, folder in zip(options.attention, folders)]
    return launch.table(headings, rows)


def runs_table(options, folders):
    """Of the last quarter of each run: its loss, seconds of a step, and the share of the pairs that it computed."""
    rows = []
    for attention, folder in zip(options.attention, folders):
        run = training.records(pathlib.Path(folder) / "metrics.jsonl")
        found = sparse_training.figures(run, run, max(1, len(run) // 4))
        rows.append([attention, f"{found['sparse']:.4f}", "all" if attention == "dense" else f"{100 * found['density']:.1f} %", f"{found['seconds'][0]:.3f}"])
    return launch.table(["trained with", "loss of the last quarter", "pairs", "s a step"], rows)


def main():
    options = parse()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    folders = [train(options, attention) for attention in options.attention]
    windows = [*(["--length", options.length] if options.length else []), *(["--windows", options.windows] if options.windows else [])]
    cells = evaluate(options, "perplexity", folders, "", ["--shards", options.shards, *windows])
    text = "Loss, nats per token:\n\n" + table(options, folders, cells, lambda one: one["loss"])
    if options.samples:
        cells = evaluate(options, "retrieval", folders, "-retrieval", ["--samples", options.samples])
        text += "\nShare of samples answered:\n\n" + table(options, folders, cells, lambda one: launch.answered(one["samples"]))
    text += "\nThe runs:\n\n" + runs_table(options, folders)
    launch.save(options, text)
    print(text, end="")


if __name__ == "__main__":
    main()
