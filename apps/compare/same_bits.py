#!/usr/bin/env python3
"""Do runs of the same training give the same bits, however the machine is used?

usage: same_bits.py --train build/cuda/bin/annulus-train --shards SHARDS --gpus 2 [--count 100] [--with OTHER.json …] [--out same-bits]

Every run makes --steps optimizer steps of a small model and saves a checkpoint. Its record is the loss and the gradient norm of each step, and the
SHA-256 of each part of the checkpoint (weights and optimizer). Runs go through --case in turn, keys of the configuration that must not change a bit, and
on GPUs through the GPUs of the machine: runs of --gpus of them, side by side. With NCCL's kernels, attention leaves max_ctas SMs to each exchange that is
under way, so these variants also differ in the SMs that attention has. --with compares with records of other machines and sessions as well. One more run,
without the fixed order of sums, must differ: else nothing would be found here (--no-planted-fault leaves it out).

<out>.json is for --with elsewhere: records, git hash and card, and what was trained (steps, ranks, keys, SHA-256 of the shards), which must be the
same. The exit status is 1 where a run differs, too, and the text names the first step or part that does. With --continue missing the same command makes
the runs that are missing.
"""

import json
import pathlib
import shutil
import sys

import launch
import training

MODEL = ["model.layers=4", "model.hidden=512", "model.heads=4", "model.kv_heads=2", "model.head_dim=128", "model.ffn=1024", "model.vocabulary=512",
         "data.sequence_length=16384", "attention.layout=zigzag", "train.dtype=bf16", "train.warmup_steps=2"]
FAULT = "planted fault"
VARIANTS = ["default:", *(f"NCCL, {n} CTAs: parallel.copy_engines=false parallel.max_ctas={n}" for n in (1, 4, 16)), "no overlap: attention.overlap=false"]


def parse():
    made = training.parser(__doc__, "same-bits", VARIANTS, sessions=True)
    made.add_argument("--count", type=int, default=100, help="runs")
    made.add_argument("--steps", type=int, default=20)
    made.add_argument("--with", nargs="+", default=[], type=pathlib.Path, dest="others", help="<out>.json of other machines and sessions")
    made.add_argument("--no-planted-fault", action="store_true")
    options = made.parse_args()
    if options.count < 2:
        made.error("give --count of 2 or more")
    training.check(made, options)
    options.groups = launch.groups_of(launch.visible_gpus(made), options.gpus) if options.device == "gpu" else [None]
    shards = sorted(pathlib.Path(options.shards).glob("*.h5"))
    if not shards:
        made.error(f"--shards {options.shards}: give a folder of token shards")
    options.trained = {"steps": options.steps, "ranks": options.ranks, "keys": [*MODEL, *options.set], "shards": launch.sha256(*shards)}
    found = {path: json.loads(path.read_text()) for path in [*options.others, *([options.out.with_suffix(".json")] if options.more else [])] if path in options.others or path.exists()}
    for path, other in found.items():
        if other["reports"][0]["trained"] != options.trained:
            made.error(f"{path} is a record of another training: {other['reports'][0]['trained']}, and this is {options.trained}")
    options.others = {str(path): (found[path]["reports"][0], recorded(found[path]["rows"])[0][1]) for path in options.others}
    return options


def record_of(folder):
    """What must be the same bits in every run."""
    steps = training.records(folder / "metrics.jsonl")
    parts = sorted((folder / "checkpoints").glob("step-*/part-*"))
    return {"losses": [step["loss"] for step in steps], "gradient norms": [step["grad_norm"] for step in steps],
            "checkpoint": [launch.sha256(part) for part in parts]}


def run(options, number, keys, gpus):
    """The record of a run on these GPUs, or None where it failed."""
    folder = options.runs / str(number)
    settings = [*MODEL, f"parallel.zero={3 if options.ranks > 1 else 0}", *options.set, *keys, f"train.steps={options.steps}", f"checkpoint.every={options.steps}", "train.log_every=1"]
    ended, _ = launch.run(training.train_command(options, folder, settings), folder.with_suffix(".log"), launch.limit(options), gpus=gpus)
    found = record_of(folder) if ended else None
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return found


def difference(a, b):
    """The first thing in which two records differ, or None."""
    for what in a:
        if len(a[what]) != len(b[what]):
            return f"{what}: {len(a[what])} and {len(b[what])}"
        for i, (x, y) in enumerate(zip(a[what], b[what])):
            if x != y:
                return f"{what}, {'part' if what == 'checkpoint' else 'step'} {i + 1}: {x} and {y}"
    return None


def recorded(rows):
    """(name, record) of the runs that ended well; the planted fault is none of them."""
    return [(row["case"], row["record"]) for row in rows if row["record"] and row["case"] != FAULT]


def verdict(options, rows):
    """What the runs say, and whether it is good."""
    runs = recorded(rows)
    if not runs:
        return "no run ended well\n", False
    (first_name, first), failed = runs[0], sum(row["record"] is None and row["case"] != FAULT for row in rows)
    others = [(f"{path} ({report['card']}, git {report['git_hash']})", record) for path, (report, record) in options.others.items()]
    differing = [(name, different) for name, record in runs + others if (different := difference(first, record))]
    text = "".join(f"{name} differs from {first_name}: {different}\n" for name, different in differing)
    text += f"{len(runs)} runs of {options.steps} steps, {len(others)} records of other sessions: {len(differing)} differ, {failed} failed"
    left = options.count - len({row["case"] for row in rows} - {FAULT})
    if left > 0:
        text += f", {left} not run"
    fault = next((row["record"] for row in rows if row["case"] == FAULT), first)
    found = fault is not None and difference(first, fault) is not None
    if not any(row["case"] == FAULT for row in rows):
        text += "" if options.no_planted_fault else "; the planted fault was not run"
    elif not options.no_planted_fault:
        text += f"; the planted fault was {'' if found else 'not '}found"
        if not found:
            text += ": sums of dQ in any order " + ("changed no bit, so runs this small show nothing here" if fault else "failed")
    return text + "\n", not failed and left <= 0 and not differing and (found or options.no_planted_fault)


def main():
    options = parse()
    results = launch.Results(options, lambda options, rows, _: verdict(options, rows)[0], keep=lambda row: row["record"] is not None)
    jobs = [(number, f"run {number}, {name}", keys) for number in range(options.count) for name, keys in [options.case[number % len(options.case)]]]
    if not options.no_planted_fault:  # early, so that a session that is cut off has it, too
        jobs.insert(1, (options.count, FAULT, ["attention.deterministic=false", "attention.kernel=hopper"]))

    def work(group, job):
        number, name, keys = job
        return {"case": name, "gpus": group, "record": run(options, number, keys, group)} if launch.limit(options) else None

    report = options.made | {"trained": options.trained}
    for row in launch.side_by_side(options.groups, [job for job in jobs if results.lacks({"case": job[1]})], work):
        if row is not None:
            print(f"{row['case']}: {'done' if row['record'] else 'failed'}", file=sys.stderr, flush=True)
            results.add([row], report, row["record"] is not None)
    return results.end() or int(not verdict(options, results.rows)[1])


if __name__ == "__main__":
    sys.exit(main())
