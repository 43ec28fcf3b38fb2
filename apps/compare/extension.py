#!/usr/bin/env python3
"""A model before and after the extension of its context to eight or sixteen times: loss by position, and recall by length and depth.

usage: extension.py --train build/cpu/bin/annulus-train [--size small|100m|100m-32k] [--seeds 1 2] [--ranks 2] [--keys 1] [--scale 1] [--text docs src]
                    [--runs runs/extension] [--out extension] [--attention dense PATTERN …] [--asked N] [--at-once N] [--picture FILE]
                    [--audit-every N]

For each seed a model learns recall on short samples (annulus-eval make --terse: `QX 46.` in other words, asked for at the end), then on ones as long as its
context, then text beside them. From its weights a run with YaRN goes on at the longer context. annulus-eval then reads, of both, that many tokens of text
that no run has seen, and samples up to that length. The same command goes on where it was cut off.

Writes <out>.html, too, a page with the curves and heat maps of annulus-eval. The exit status is 1 where a model misses one of LIMITS, too. `near` is the second half of the short context, `far` what stands more than twice that context back: positions of text behind it,
samples whose pair does. --scale multiplies all numbers of steps and samples: 10 takes ten times as long.

With --attention the longer context is learned once with each of these, from the same weights: `dense`, or what attention.sparsity takes; matrix.py has the
functions that do this and evaluate every model with every attention. Size 100m-32k is meant for that. LIMITS do not apply. <out>.md and <out>.json have
the tables of all seeds and of each one, --picture the curves (quality.py). --at-once seeds run side by side, on GPUs of their own. What is finished is
kept in <runs>/seed-<seed>-after/<attention>.json: the same command of the same build on the same text goes on with these files alone.

With --audit-every these models of one seed are not evaluated: attention of each is audited in every N-th optimizer step of the longer context
(docs/formats/attention.md). That is learned on text alone then: a sample has a gradient at its end and nowhere else. <out>.md has the table of density,
recall and entropy, <out>.json what the picture shows: the first audit and the last.
"""

import html
import pathlib
import random
import sys
from typing import NamedTuple

import launch
import matrix
import quality

DEPTHS = (0, 0.25, 0.5, 0.75, 1)


class Stage(NamedTuple):
    """A run, which starts from the weights of the one before."""
    name: str
    tokens: int      # of a sequence
    steps: int
    sequences: int   # of an optimizer step
    lengths: tuple   # of samples
    samples: float   # tokens of samples for each token of text; 0: samples alone
    keys: list       # of the configuration


class Size(NamedTuple):
    config: str
    device: str
    ranks: int
    short: int       # tokens of the context before
    long: int        # and after
    windows: int     # of text, and
    asked: int       # samples of each length and depth, that are evaluated
    stages: tuple    # `before` and `after` are the last two

    def lengths(self):
        return doubled(self.short, self.long)


def doubled(first, last):
    return (first, *doubled(2 * first, last)) if first < last else (last,)


def yarn(short, long):
    return ["model.rope_scaling=yarn", f"model.rope_factor={long / short}", f"model.rope_original_length={short}"]


# With text a step has few answers, a hundredth of the tokens that count: recall is learned before.
SIZES = {
    "small": Size("extension.toml", "cpu", 2, 512, 4096, windows=96, asked=8, stages=(
        Stage("short", 512, 300, 8, (24, 48, 96), 0, []),
        Stage("recall", 512, 500, 8, doubled(64, 512), 0, []),
        Stage("before", 512, 1500, 2, doubled(128, 512), 2, ["train.lr=2e-3", "train.min_lr=4e-4"]),
        Stage("after", 4096, 450, 1, doubled(512, 4096), 3, ["parallel.context=0", "train.lr=1e-3", "train.min_lr=1e-4", *yarn(512, 4096)]))),
    "100m": Size("extension-100m.toml", "gpu", 1, 8192, 131072, windows=4, asked=2, stages=(
        Stage("short", 8192, 400, 4, (24, 48, 96), 0, ["train.lr=3e-4", "train.min_lr=6e-5", "train.warmup_steps=60"]),
        Stage("recall", 8192, 400, 4, doubled(64, 8192), 0, []),
        Stage("before", 8192, 300, 4, doubled(512, 8192), 2, []),
        Stage("after", 131072, 120, 1, doubled(8192, 131072), 3,
              ["parallel.context=0", "train.min_lr=1.5e-5", "train.warmup_steps=5", "memory.recompute=selective", *yarn(8192, 131072)])))}
# All samples as long as a sequence: then selections of fixed numbers have the same density in each document.
SIZES["100m-32k"] = SIZES["100m"]._replace(long=32768, windows=16, asked=20, stages=(
    *SIZES["100m"].stages[:-1],
    Stage("after", 32768, 120, 2, (32768,), 3, ["parallel.context=0", "train.min_lr=1.5e-5", "train.warmup_steps=5", *yarn(8192, 32768)])))
# (what, of which model, whether a figure is good)
LIMITS = (("recall, far", "before", lambda of: of["recall, far"] <= 0.3),
          ("loss, far / near", "before", lambda of: of["loss, far / near"] >= 1.2),
          ("recall, worst length", "after", lambda of: of["recall, worst length"] >= 0.9),
          ("loss, beyond / near", "after", lambda of: of["loss, beyond / near"] <= 1.02))


def parse():
    parser = launch.parser(__doc__, "annulus-train", "extension", page=False)
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model; 100m wants a GPU")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=[launch.ROOT / "docs", launch.ROOT / "src"], help="folders of the text, an eighth of whose files is held out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ranks", type=int, help="2 of size small, 1 of 100m")
    parser.add_argument("--keys", type=int, default=1, help="pairs of a sample, of which one is asked for")
    parser.add_argument("--scale", type=float, default=1, help="of steps and samples")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys of all runs")
    parser.add_argument("--attention", nargs="+", default=[], metavar="PATTERN", help="attention with which the longer context is learned: dense, or what attention.sparsity takes")
    parser.add_argument("--asked", type=int, help="samples of each length and depth that are evaluated; several hundred in all tell 98 %% from 93 %%")
    parser.add_argument("--audit-every", type=int, help="with --attention: optimizer steps from one audit of the longer context to the next, in place of evaluations")
    parser.add_argument("--at-once", type=int, default=1, help="with --attention: seeds that run side by side")
    parser.add_argument("--picture", type=pathlib.Path, help="SVG of --attention; <out>.svg by default")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/extension"), help="folder of data and runs")
    options = parser.parse_args()
    options.size = SIZES[options.size]
    options.ranks = options.size.ranks if options.ranks is None else options.ranks
    options.picture = options.picture or options.out.with_suffix(".svg")
    launch.check(parser, options)
    if options.audit_every:
        steps = scaled(options, options.size.stages[-1].steps)
        if not options.attention or len(options.seeds) > 1 or options.asked or options.at_once > 1:
            parser.error("--audit-every: give --attention and one of --seeds, without --asked and --at-once")
        if options.audit_every > steps:
            parser.error(f"--audit-every {options.audit_every}: the longer context is learned in {steps} optimizer steps: give a step of these")
    options.groups = [None] * options.at_once
    if options.at_once > 1 and options.size.device == "gpu":
        here = launch.visible_gpus(parser)
        options.groups = launch.groups_of(here, options.ranks)[:options.at_once]
        if len(options.groups) < options.at_once:
            parser.error(f"--at-once {options.at_once} with {options.ranks} ranks each, but programs see {len(here)} GPUs")
    return options


def scaled(options, number):
    return max(1, round(options.scale * number))


def start(options, program, arguments, log, ranks=1):
    """Runs a program of Annulus to its end; this script ends where it fails."""
    launch.finish(options, [*(launch.on_ranks(options, 1) if ranks > 1 else []), options.program.with_name(program), *arguments], options.runs / f"{log}.log")


def pack_text(options):
    """Shards text and held-out, each of one document: then the place in a file does not go with the place in a window."""
    files = sorted(file for folder in options.text for file in folder.rglob("*") if file.suffix in (".md", ".cpp", ".hpp", ".txt"))
    random.Random(1).shuffle(files)
    held_out = max(1, len(files) // 8)
    for name, part in (("held-out", files[:held_out]), ("text", files[held_out:])):
        text = options.runs / f"{name}.txt"
        content = "\n".join(file.read_text(encoding="utf-8") for file in part)
        if not text.exists() or text.read_text(encoding="utf-8") != content:  # a pack goes by the times of its files, too
            text.write_text(content, encoding="utf-8")
        start(options, "annulus-tokens", ["pack", "--out", options.runs / name, text], f"pack-{name}")


def make_samples(options, name, lengths, number, seed):
    """A folder of `number` samples of each length and depth, if it is not there."""
    folder = options.runs / name
    if not folder.exists():
        start(options, "annulus-eval", ["make", "--out", folder, "--kinds", "keys", "--terse", "--keys", options.keys, "--digits", 2, "--lengths",
                                        ",".join(map(str, lengths)), "--depths", ",".join(map(str, DEPTHS)), "--samples", number, "--seed", seed], f"make-{name}")
    return folder


def settings_of(options, seed, stage, weights):
    """Keys of a stage's run, without its folder; the samples that it reads are made where they are not there."""
    steps = scaled(options, stage.steps)
    # Where a run reads a share of the samples, that is what its steps take, in drawn order; without text these take all.
    size = stage.samples * (options.runs / "text.txt").stat().st_size if stage.samples else steps * stage.sequences * stage.tokens
    # The longest first: then all powers of two begin at multiples of their length, and no window of the run cuts one.
    lengths = sorted(stage.lengths, reverse=True)
    number = [max(1, round(size / (length * len(DEPTHS) * len(lengths)))) for length in lengths]
    shards = [make_samples(options, f"seed-{seed}-{stage.name}-{length}", [length], of, 1000 + seed) for length, of in zip(lengths, number)]
    shards += [options.runs / "text"] if stage.samples else []
    return [f"run.device={options.size.device}", f"run.seed={seed}", f"data.seed={seed}", f"data.sequence_length={stage.tokens}",
            f"data.shards=[{', '.join(repr(str(shard)) for shard in shards)}]", f"train.steps={steps}", f"train.warmup_steps={scaled(options, stage.steps / 30)}",
            f"train.micro_batches={stage.sequences}", f"train.sequences_per_pass={max(1, stage.sequences // options.ranks)}", *weights, *stage.keys, *options.set]


def folder_of(options, seed, stage):
    return options.runs / f"seed-{seed}-{stage.name}"


def weights_of(options, seed, stage):
    """The key that starts a run from what a stage has learned."""
    return [f"model.from={folder_of(options, seed, stage)}/checkpoints/step-{scaled(options, stage.steps):08}"]


def train(options, seed, stages):
    """Runs the first stages, or all; returns their folders by name."""
    for before, stage in zip((None, *stages), stages):
        settings = [f"run.folder={folder_of(options, seed, stage)}", *settings_of(options, seed, stage, weights_of(options, seed, before) if before else [])]
        start(options, "annulus-train", [launch.ROOT / "data" / options.size.config, "--set", *settings], f"seed-{seed}-{stage.name}", options.ranks)
    return {stage.name: folder_of(options, seed, stage) for stage in stages}


def of_matrix(options, seed, stage, **more):
    """Options of matrix.py, which trains a last stage with each attention."""
    before = options.size.stages[-2]
    return launch.with_other(options, config=launch.ROOT / "data" / options.size.config, runs=folder_of(options, seed, stage),
                             set=settings_of(options, seed, stage, weights_of(options, seed, before)), **more)


def rows_of_seed(options, seed, samples):
    """The rows of matrix.py for the last stage, after all others; and whether all are there."""
    *stages, last = options.size.stages
    of_last = of_matrix(options, seed, last, shards=options.runs / "held-out", length=options.size.long, windows=scaled(options, options.size.windows), samples=samples,
                        data=launch.sha256(*(options.runs / f"{name}.txt" for name in ("held-out", "text"))))
    return matrix.rows_of(of_last, lambda: train(options, seed, stages))


def rows_of_seeds(options, samples):
    """{seed: (rows, whether all are there)}; --at-once seeds at the same time, each on the GPUs of its own."""
    def work(gpus, seed):
        try:
            return rows_of_seed(launch.with_other(options, visible=gpus), seed, samples)
        except SystemExit:  # its samples could not be made
            return [], False

    return dict(zip(options.seeds, launch.side_by_side(options.groups, options.seeds, work)))


def compare_attentions(options, samples):
    """The tables and the picture of --attention; the exit status."""
    found = rows_of_seeds(options, samples)
    rows = {seed: of for seed, (of, _) in found.items() if of}
    whole = all(all_there for _, all_there in found.values())
    if not rows:
        return 1
    text = quality.markdown(options.attention, rows)
    launch.save(options, text, {"rows": rows})
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    quality.draw(options.attention, rows).write(options.picture)
    print(text, end="")
    return 0 if whole else 1


def audit_attentions(options):
    """The table, the figures and the picture of --audit-every; the exit status. They have what is there after each attention."""
    seed, = options.seeds
    *stages, last = options.size.stages
    train(options, seed, stages)
    audited = of_matrix(options, seed, last._replace(name="audited", lengths=(), keys=[*last.keys, f"sparsity.audit_every={options.audit_every}"]))
    audited.runs.mkdir(exist_ok=True)
    found, text = {"program": launch.version(options), "runs": []}, ""
    for attention in options.attention:
        try:
            folder = matrix.train(audited, attention)
        except SystemExit:  # what failed has said why
            continue
        found["runs"].append(quality.audits(attention, folder))
        text = quality.audits_table(found)
        launch.save(options, text)
        options.out.with_suffix(".json").write_text(quality.in_lines(found))
        quality.pictures.draw_audits(found).write(options.picture)
    print(text, end="")
    return 0 if len(found["runs"]) == len(options.attention) else 1


def evaluate(options, command, models, arguments):
    """What annulus-eval says of each model, and its page."""
    stem = options.out.with_name(f"{options.out.name}-{command}")
    return launch.evaluate(options, command, models, arguments, stem), stem.with_name(stem.name + ".html").read_text(encoding="utf-8")


def loss(evaluation, first, last):
    """Mean of the tokens with `first` to `last` - 1 tokens before them."""
    of = [bucket for bucket in evaluation["by_position"] if first <= bucket["from"] < last]
    return sum(bucket["loss"] * bucket["targets"] for bucket in of) / sum(bucket["targets"] for bucket in of)


def figures(size, text, recall):
    """What LIMITS are about, and recall by length, from the evaluations of one model."""
    by_length = {length: launch.answered([sample for sample in recall["samples"] if sample["tokens"] == length]) for length in size.lengths()}
    near, far = loss(text, size.short // 2, size.short), 2 * size.short
    return {"recall": by_length, "recall, worst length": min(by_length.values()),
            "recall, far": launch.answered([sample for sample in recall["samples"] if (1 - sample["depth"]) * sample["tokens"] > far]),
            "loss": {f"{first}-{2 * first - 1}": loss(text, first, 2 * first) for first in doubled(size.short // 4, size.long // 2)},
            "loss, far / near": loss(text, far, size.long) / near, "loss, beyond / near": loss(text, size.short, size.long) / near}


def missed(rows):
    return [f"seed {row['seed']}, {row['model']}: {what} is {row[what]:.3f}" for row in rows for what, model, good in LIMITS if model == row["model"] and not good(row)]


def markdown(rows):
    of = [(row["seed"], row["model"]) for row in rows]
    text = "Loss, nats per token, by tokens before:\n\n" + launch.table(
        ["seed", "model", *rows[0]["loss"], "far / near", "beyond / near"],
        [[*name, *(f"{value:.3f}" for value in row["loss"].values()), f"{row['loss, far / near']:.3f}", f"{row['loss, beyond / near']:.3f}"] for name, row in zip(of, rows)])
    text += "\nShare of samples answered, by length:\n\n" + launch.table(
        ["seed", "model", *map(str, rows[0]["recall"]), "far"], [[*name, *(f"{value:.2f}" for value in row["recall"].values()), f"{row['recall, far']:.2f}"] for name, row in zip(of, rows)])
    return text + "".join(f"\nMissed: {one}" for one in missed(rows)) + "\n"


def page(text, pages):
    """One file: the table, and the pages of annulus-eval as they are."""
    frames = "".join(f'<iframe title="{name}" srcdoc="{html.escape(one)}" style="width: 100%; height: 90vh; border: 0"></iframe>\n' for name, one in pages.items())
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Before and after an extension</title>\n<pre>{html.escape(text)}</pre>\n{frames}</html>\n'


def main():
    options = parse()
    options.runs.mkdir(parents=True, exist_ok=True)
    pack_text(options)
    if options.audit_every:
        return audit_attentions(options)
    asked = options.asked or scaled(options, options.size.asked)
    samples = make_samples(options, f"asked-{asked}", options.size.lengths(), asked, 1)
    if options.attention:
        return compare_attentions(options, samples)
    names, models = [], []
    for seed in options.seeds:
        folders = train(options, seed, options.size.stages)
        for model in ("before", "after"):
            names.append((seed, model))
            models.append(folders[model])
    texts, text_page = evaluate(options, "perplexity", models, ["--shards", options.runs / "held-out", "--length", options.size.long, "--windows", scaled(options, options.size.windows)])
    recalls, recall_page = evaluate(options, "retrieval", models, ["--samples", samples])
    rows = [{"seed": seed, "model": model, **figures(options.size, *found)} for (seed, model), *found in zip(names, texts, recalls)]
    text = markdown(rows)
    launch.save(options, text, {"rows": rows, "missed": missed(rows), "perplexity": texts, "retrieval": recalls})
    options.out.with_suffix(".html").write_text(page(text, {"Perplexity": text_page, "Retrieval": recall_page}), encoding="utf-8")
    print(text, end="")
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
