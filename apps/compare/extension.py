#!/usr/bin/env python3
"""A small model before and after the extension of its context from 512 to 4096 tokens: loss by position, and recall by length and depth.

usage: extension.py --train build/cpu/bin/annulus-train [--seeds 1 2] [--ranks 2] [--keys 1] [--scale 1] [--text docs src] [--runs runs/extension]
                    [--out extension]

For each seed a model of data/extension.toml learns recall on short samples (annulus-eval make --terse: `QX 46.` in other words, asked for at the end), then
on ones of up to 512 tokens, then text beside them. From its weights a run with YaRN, factor 8, goes on at 4096 tokens. annulus-eval then reads, of both, 4096
tokens of text that no run has seen, and samples of 512 to 4096 tokens. The same command goes on where it was cut off.

Writes <out>.md, <out>.json, and <out>.html, a page with the curves and heat maps of annulus-eval. The exit status is 1 when a program failed, or a model
misses one of LIMITS. `far` is what stands more than 1024 tokens back: positions of text behind 1024, samples whose pair does.
--scale multiplies all numbers of steps and samples: 10 takes ten times as long.
"""

import html
import json
import pathlib
import random
import sys

import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHORT, LONG, FAR = 512, 4096, 1024
LENGTHS, DEPTHS = (512, 1024, 2048, 4096), (0, 0.25, 0.5, 0.75, 1)
YARN = ["model.rope_scaling=yarn", f"model.rope_factor={LONG / SHORT}", f"model.rope_original_length={SHORT}"]
# (name, tokens, optimizer steps, sequences of a step, lengths of samples, whether text is learned, keys); each starts from the weights of the one before.
# With text a step has few sequences: answers are a hundredth of the tokens that count, and are learned from the steps that have no text.
STAGES = (("short", SHORT, 150, 8, (24, 48, 96), False, []),
          ("recall", SHORT, 400, 8, (64, 128, 256, 512), False, []),
          ("before", SHORT, 1200, 2, (128, 256, 512), True, ["train.lr=2e-3", "train.min_lr=4e-4"]),
          ("after", LONG, 300, 1, (512, 1024, 2048, 4096), True, ["parallel.context=0", "train.lr=1e-3", "train.min_lr=1e-4", *YARN]))
# (what, of which model, whether a figure is good)
LIMITS = (("recall, far", "before", lambda of: of["recall, far"] <= 0.3),
          ("loss, far / 256-511", "before", lambda of: of["loss, far / 256-511"] >= 1.2),
          ("recall, worst length", "after", lambda of: of["recall, worst length"] >= 0.9),
          ("loss, 512-4095 / 256-511", "after", lambda of: of["loss, 512-4095 / 256-511"] <= 1.02))


def parse():
    parser = launch.parser(__doc__, "annulus-train", "extension")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "data" / "extension.toml")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=[ROOT / "docs", ROOT / "src"], help="folders of the text, an eighth of whose files is held out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--keys", type=int, default=1, help="pairs of a sample, of which one is asked for")
    parser.add_argument("--scale", type=float, default=1, help="of steps and samples")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys of all runs")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/extension"), help="folder of data and runs")
    options = parser.parse_args()
    launch.check(parser, options)
    return options


def scaled(options, number):
    return max(1, round(options.scale * number))


def start(options, program, arguments, log, ranks=1):
    """Runs a program of Annulus to its end; this script ends where it fails."""
    command = [*(launch.on_ranks(options, 1) if ranks > 1 else []), options.program.with_name(program), *arguments]
    if not launch.run(command, options.runs / f"{log}.log", launch.limit(options))[0]:
        sys.exit(1)


def pack_text(options):
    """Shards text and held-out, each of one document: then the place in a file does not go with the place in a window."""
    files = sorted(file for folder in options.text for file in folder.rglob("*") if file.suffix in (".md", ".cpp", ".hpp", ".txt"))
    random.Random(1).shuffle(files)
    held_out = max(1, len(files) // 8)
    for name, part in (("held-out", files[:held_out]), ("text", files[held_out:])):
        text = options.runs / f"{name}.txt"
        text.write_text("\n".join(file.read_text(encoding="utf-8") for file in part), encoding="utf-8")
        start(options, "annulus-tokens", ["pack", "--out", options.runs / name, text], f"pack-{name}")


def make_samples(options, name, lengths, number, seed):
    """A folder of `number` samples of each length and depth, if it is not there."""
    folder = options.runs / name
    if not folder.exists():
        start(options, "annulus-eval", ["make", "--out", folder, "--kinds", "keys", "--terse", "--keys", options.keys, "--digits", 2, "--lengths",
                                        ",".join(map(str, lengths)), "--depths", ",".join(map(str, DEPTHS)), "--samples", number, "--seed", seed], f"make-{name}")
    return folder


def train(options, seed):
    """Folders of the runs before and after, by name."""
    folders, weights = {}, []
    for name, tokens, steps, sequences, lengths, with_text, keys in STAGES:
        folders[name] = options.runs / f"seed-{seed}-{name}"
        # As many tokens of samples as of text, of which a run reads what its steps take; without text what these take.
        size = (options.runs / "text.txt").stat().st_size if with_text else scaled(options, steps) * sequences * tokens
        shards = [make_samples(options, f"seed-{seed}-{name}-{length}", [length], max(1, size // (length * len(DEPTHS) * len(lengths))), 1000 + seed) for length in lengths]
        shards += [options.runs / "text"] if with_text else []
        settings = [f"run.folder={folders[name]}", "run.device=cpu", f"run.seed={seed}", f"data.seed={seed}", f"data.sequence_length={tokens}",
                    f"data.shards=[{', '.join(repr(str(shard)) for shard in shards)}]", f"train.steps={scaled(options, steps)}", f"train.warmup_steps={scaled(options, steps / 30)}",
                    f"train.micro_batches={sequences}", f"train.sequences_per_pass={max(1, sequences // options.ranks)}", *weights, *keys, *options.set]
        start(options, "annulus-train", [options.config, "--set", *settings], f"seed-{seed}-{name}", options.ranks)
        weights = [f"model.from={next((folders[name] / 'checkpoints').iterdir())}"]
    return folders


def evaluate(options, command, models, arguments):
    """What annulus-eval says of each model, and its page."""
    stem = options.out.with_name(f"{options.out.name}-{command}")
    report, good = launch.measured([*launch.on_ranks(options, 1), options.program.with_name("annulus-eval"), command, *models, *arguments, "--html", f"{stem}.html", "--json"],
                                   stem, launch.limit(options))
    if not good:
        sys.exit(1)
    return report["evaluations"], stem.with_name(stem.name + ".html").read_text(encoding="utf-8")


def loss(evaluation, first, last):
    """Mean of the tokens with `first` to `last` - 1 tokens before them."""
    of = [bucket for bucket in evaluation["by_position"] if first <= bucket["from"] < last]
    return sum(bucket["loss"] * bucket["targets"] for bucket in of) / sum(bucket["targets"] for bucket in of)


def share(samples):
    return sum(sample["correct"] for sample in samples) / len(samples)


def figures(text, recall):
    """What LIMITS are about, and recall by length, from the evaluations of one model."""
    by_length = {length: share([sample for sample in recall["samples"] if sample["tokens"] == length]) for length in LENGTHS}
    near = loss(text, 256, 512)
    return {"recall": by_length, "recall, worst length": min(by_length.values()),
            "recall, far": share([sample for sample in recall["samples"] if (1 - sample["depth"]) * sample["tokens"] > FAR]),
            "loss": {f"{first}-{2 * first - 1}": loss(text, first, 2 * first) for first in (128, 256, 512, 1024, 2048)},
            "loss, far / 256-511": loss(text, FAR, LONG) / near, "loss, 512-4095 / 256-511": loss(text, SHORT, LONG) / near}


def missed(rows):
    return [f"seed {row['seed']}, {row['model']}: {what} is {row[what]:.3f}" for row in rows for what, model, good in LIMITS if model == row["model"] and not good(row)]


def markdown(rows):
    of = [(row["seed"], row["model"]) for row in rows]
    text = "Loss, nats per token, by tokens before:\n\n" + launch.table(
        ["seed", "model", *rows[0]["loss"], "far / 256-511", "512-4095 / 256-511"],
        [[*name, *(f"{value:.3f}" for value in row["loss"].values()), f"{row['loss, far / 256-511']:.3f}", f"{row['loss, 512-4095 / 256-511']:.3f}"] for name, row in zip(of, rows)])
    text += "\nShare of samples answered, by length:\n\n" + launch.table(
        ["seed", "model", *map(str, LENGTHS), "far"], [[*name, *(f"{value:.2f}" for value in row["recall"].values()), f"{row['recall, far']:.2f}"] for name, row in zip(of, rows)])
    return text + "".join(f"\nMissed: {one}" for one in missed(rows)) + "\n"


def page(text, pages):
    """One file: the table, and the pages of annulus-eval as they are."""
    frames = "".join(f'<iframe title="{name}" srcdoc="{html.escape(one)}" style="width: 100%; height: 90vh; border: 0"></iframe>\n' for name, one in pages.items())
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Before and after an extension</title>\n<pre>{html.escape(text)}</pre>\n{frames}</html>\n'


def main():
    options = parse()
    options.runs.mkdir(parents=True, exist_ok=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    pack_text(options)
    names, models = [], []
    for seed in options.seeds:
        folders = train(options, seed)
        for model in ("before", "after"):
            names.append((seed, model))
            models.append(folders[model])
    samples = make_samples(options, "asked", LENGTHS, scaled(options, 8), 1)
    texts, text_page = evaluate(options, "perplexity", models, ["--shards", options.runs / "held-out", "--length", LONG, "--windows", scaled(options, 48)])
    recalls, recall_page = evaluate(options, "retrieval", models, ["--samples", samples])
    rows = [{"seed": seed, "model": model, **figures(*found)} for (seed, model), *found in zip(names, texts, recalls)]
    text = markdown(rows)
    options.out.with_suffix(".md").write_text(text)
    options.out.with_suffix(".json").write_text(json.dumps({"rows": rows, "missed": missed(rows), "perplexity": texts, "retrieval": recalls}, indent=1))
    options.out.with_suffix(".html").write_text(page(text, {"Perplexity": text_page, "Retrieval": recall_page}), encoding="utf-8")
    print(text, end="")
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
