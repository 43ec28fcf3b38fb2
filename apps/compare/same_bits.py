#!/usr/bin/env python3
"""Do runs of the same training give the same bits, however the machine is used?

usage: same_bits.py --train build/cuda/bin/annulus-train --shards SHARDS --gpus 2 [--count 100] [--with OTHER.json …] [--out same-bits]

Every run makes --steps optimizer steps of a small model and saves a checkpoint. Its record is the loss and the gradient norm of each step, and the
SHA-256 of each part of the checkpoint (weights and optimizer). Runs go through --variant in turn, keys of the configuration that must not change a bit, and
on GPUs through the GPUs of the machine: runs of --gpus of them, side by side. --with compares with records of other machines as well. One more run,
without the fixed order of sums, must differ: else nothing would be found here (--no-planted-fault leaves it out).

Writes <out>.json, for --with on another machine. The exit status is 1 where a run failed or differs, and names the first step or part that does.
"""

import concurrent.futures
import hashlib
import json
import pathlib
import queue
import shutil
import sys

import launch
import training

MODEL = ["model.layers=4", "model.hidden=512", "model.heads=4", "model.kv_heads=2", "model.head_dim=128", "model.ffn=1024", "model.vocabulary=512",
         "data.sequence_length=16384", "attention.layout=zigzag", "train.dtype=bf16", "train.warmup_steps=2"]
VARIANTS = ["default:", *(f"{n} CTAs: parallel.copy_engines=false parallel.max_ctas={n}" for n in (1, 4, 16)), "no overlap: attention.overlap=false"]


def parse():
    made = training.parser(__doc__, "same-bits")
    made.add_argument("--count", type=int, default=100, help="runs")
    made.add_argument("--steps", type=int, default=20)
    made.add_argument("--variant", nargs="+", default=VARIANTS, metavar="'NAME: KEY=VALUE …'")
    made.add_argument("--with", nargs="+", default=[], type=pathlib.Path, dest="others", help="<out>.json of other machines")
    made.add_argument("--no-planted-fault", action="store_true")
    options = made.parse_args()
    if options.count < 2:
        made.error("give --count of 2 or more")
    options.variant = training.split_cases(made, options.variant)
    training.check(made, options)
    options.here = launch.gpus_here(made) if options.device == "gpu" else 0
    return options


def record_of(folder):
    """What must be the same bits in every run."""
    steps = training.records(folder / "metrics.jsonl")
    parts = sorted((folder / "checkpoints").glob("step-*/part-*"))
    return {"losses": [step["loss"] for step in steps], "gradient norms": [step["grad_norm"] for step in steps],
            "checkpoint": [hashlib.sha256(part.read_bytes()).hexdigest() for part in parts]}


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


def run_all(options):
    """(name, record) of every run. A worker has GPUs of its own, and takes the next run when it is done with one."""
    groups = [None]
    if options.device == "gpu":
        groups = [range(first, first + options.gpus) for first in range(0, options.here - options.gpus + 1, options.gpus)]
    jobs = [(number, *options.variant[number % len(options.variant)]) for number in range(options.count)]
    if not options.no_planted_fault:
        jobs.append((options.count, "planted fault", ["attention.deterministic=false", "attention.kernel=hopper"]))
    free, found = queue.SimpleQueue(), []
    for group in groups:
        free.put(group)

    def work(number, name, keys):
        group = free.get()
        try:
            return f"run {number}, {name}" + (f", GPUs {group[0]} to {group[-1]}" if group else ""), run(options, number, keys, group)
        finally:
            free.put(group)

    with concurrent.futures.ThreadPoolExecutor(len(groups)) as workers:
        for name, record in workers.map(lambda job: work(*job), jobs):
            print(f"{name}: {'failed' if record is None else 'done'}", file=sys.stderr, flush=True)
            found.append((name, record))
    return found


def main():
    options = parse()
    found = run_all(options)
    planted = None if options.no_planted_fault else found.pop()[1]
    failed = [name for name, record in found if record is None]
    first_name, first = next(((name, record) for name, record in found if record is not None), (None, None))
    if first is None:
        print("no run ended well")
        return 1
    others = [(str(path), record) for path in options.others for record in json.loads(path.read_text())]
    differing = [(name, difference(first, record)) for name, record in found + others if record is not None and difference(first, record)]
    options.out.with_suffix(".json").write_text(json.dumps([first]))
    for name, text in differing:
        print(f"{name} differs from {first_name}: {text}")
    blind = planted is not None and difference(first, planted) is None
    if blind:
        print("the planted fault, sums of dQ in any order, changed no bit: runs this small show nothing here")
    print(f"{len(found) - len(failed)} runs of {options.steps} steps, {len(others)} records of other machines: "
          f"{len(differing)} differ, {len(failed)} failed" + ("" if planted is None else "; the planted fault was " + ("not " if blind else "") + "found"))
    return 1 if failed or differing or blind else 0


if __name__ == "__main__":
    sys.exit(main())
