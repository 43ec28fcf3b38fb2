#!/usr/bin/env python3
"""Models trained with each of several selections, evaluated with each of them: what sparse attention costs in training and in use.

usage: matrix.py --train build/cpu/bin/annulus-train CONFIG --shards HELD-OUT [--attention dense PATTERN …] [--samples FOLDER]
                 [--set KEY=VALUE …] [--length N] [--windows N] [--ranks 2] [--runs runs/matrix] [--out matrix]

Trains CONFIG once for each --attention, in folders of --runs, and evaluates each model with every --attention: `dense`, or what
attention.sparsity takes. annulus-eval, beside annulus-train, says the losses on --shards, and which of --samples (annulus-eval make) were
answered. What a model and its evaluations gave is kept as <runs>/<attention>.json: the same command of the same build goes on where it was
cut off, also where nothing but these files is left of --runs.

The tables: losses of models (rows) by the attention of the evaluation (columns), then shares of samples that were answered with their 95 %
intervals, then what each run says of itself (sparse_training.py).
"""

import json
import pathlib
import re
import statistics
import sys

import launch
import sparse_training
import training

OF_A_STEP = ("step", "loss", "step_seconds", "attention_density", "attention_imbalance", "attention_recall")  # what is kept of metrics.jsonl


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
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/matrix"), help="folder of the runs")
    options = parser.parse_args()
    launch.check(parser, options)
    return options


def selection(attention):
    return "" if attention == "dense" else attention


def folder_of(options, attention):
    return options.runs / re.sub("[^A-Za-z0-9.]+", "-", attention)


def file_of(options, attention):
    folder = folder_of(options, attention)
    return folder.with_name(folder.name + ".json")


def follows_from(options, attention):
    """All that decides what a row says."""
    return {"program": launch.version(options), "attention": attention, "evaluated with": options.attention, "data": getattr(options, "data", ""),
            **{name: str(getattr(options, name)) for name in ("config", "set", "shards", "samples", "length", "windows", "ranks")}}


def kept(options, attention):
    """The row of an earlier call; None where there is none, or another command or build made it."""
    file = file_of(options, attention)
    row = json.loads(file.read_text()) if file.exists() else None
    return row if row and row["follows from"] == follows_from(options, attention) else None


def train(options, attention):
    folder = folder_of(options, attention)
    settings = [*options.set, f"attention.sparsity={selection(attention)}", f"run.folder={folder}"]
    launch.finish(options, [*launch.on_ranks(options, 1), options.program, options.config, "--set", *settings], folder.with_name(folder.name + ".log"))
    return folder


def evaluate(options, command, folder, more):
    """What annulus-eval says of a model, by the attention of the evaluation."""
    attentions = [word for attention in options.attention for word in ("--sparsity", attention)]
    found = launch.evaluate(options, command, [folder], [*attentions, *more], folder.with_name(f"{folder.name}-{command}"))
    return dict(zip(options.attention, found, strict=True))


def measure(options, attention):
    """A row: trains and evaluates, and keeps what that gave."""
    folder = train(options, attention)
    windows = [*(["--length", options.length] if options.length else []), *(["--windows", options.windows] if options.windows else [])]
    row = {"follows from": follows_from(options, attention), "attention": attention,
           "run": [{key: step[key] for key in OF_A_STEP if key in step} for step in training.records(folder / "metrics.jsonl")],
           "perplexity": evaluate(options, "perplexity", folder, ["--shards", options.shards, *windows]),
           "retrieval": evaluate(options, "retrieval", folder, ["--samples", options.samples]) if options.samples else None}
    file = file_of(options, attention)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.rename(file)
    return row


def rows_of(options, prepare=lambda: None):
    """The rows of all attentions, and whether none is missing. `prepare` is called before the first one that is not kept; one that fails leaves the others."""
    rows, prepared = [], None
    options.runs.mkdir(parents=True, exist_ok=True)
    for attention in options.attention:
        row = kept(options, attention)
        if row is None and prepared is not False:
            try:
                if prepared is None:
                    prepared = False
                    prepare()
                    prepared = True
                row = measure(options, attention)
            except SystemExit:  # what failed has said why
                pass
        if row:
            rows.append(row)
    return rows, len(rows) == len(options.attention)


def of_attention(rows, attention):
    """{seed: row} of the models that trained with it. `rows`: {seed: rows}, of which some may be missing."""
    return {seed: row for seed, of in rows.items() for row in of if row["attention"] == attention}


def asked(rows, trained, used):
    """{(seed, number): sample}: every model was asked the same samples."""
    return {(seed, number): sample for seed, row in of_attention(rows, trained).items() for number, sample in enumerate(row["retrieval"][used]["samples"])}


def each_with_each(rows, attentions):
    """Tables of models (rows) by the attention of the evaluation (columns)."""
    def table(cell):
        there = [attention for attention in attentions if of_attention(rows, attention)]
        return launch.table(["trained with, evaluated with", *attentions], [[trained, *(cell(trained, used) for used in attentions)] for trained in there])

    mean_loss = lambda trained, used: statistics.mean(row["perplexity"][used]["loss"] for row in of_attention(rows, trained).values())  # noqa: E731
    text = "Each with each, loss in nats per token:\n\n" + table(lambda trained, used: f"{mean_loss(trained, used):.4f}")
    if any(row["retrieval"] for of in rows.values() for row in of):
        text += "\nEach with each, share of samples answered (95 % interval):\n\n" + table(lambda trained, used: launch.share(list(asked(rows, trained, used).values())))
    return text


def run_figures(row):
    """Of the last quarter of a run: its loss, the share of the pairs that it computed, and the median seconds of a step."""
    found = sparse_training.figures(row["run"], row["run"], max(1, len(row["run"]) // 4))
    return found["sparse"], found["density"], found["seconds"][0]


def pairs(attention, densities):
    return "all" if attention == "dense" else f"{100 * statistics.mean(densities):.1f} %"


def markdown(options, rows):
    figures = [(row["attention"], *run_figures(row)) for row in rows]
    return each_with_each({0: rows}, options.attention) + "\nThe runs:\n\n" + launch.table(
        ["trained with", "loss of the last quarter", "pairs", "s a step"],
        [[attention, f"{loss:.4f}", pairs(attention, [density]), f"{seconds:.3f}"] for attention, loss, density, seconds in figures])


def main():
    options = parse()
    rows, whole = rows_of(options)
    text = markdown(options, rows)
    launch.save(options, text, {"rows": rows})
    print(text, end="")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
