#!/usr/bin/env python3
"""One optimizer step of a model in several settings of [memory], beside PyTorch, in one go and in one table.

usage: training.py --train build/cuda/bin/annulus-train --shards SHARDS [--config data/llama-7b.toml] [--gpus 2]
                   [--tokens 65536 131072] [--case 'NAME: KEY=VALUE …' …] [--pytorch full selective none] [--out training]

Each case is a run of annulus-train with the keys of the case on top of the configuration; for each number of tokens all
cases run one after the other, then PyTorch (training_peer.py: FSDP2, context_parallel, torch.compile, cuDNN) with the same shape
and each of the given kinds of recompute. One sequence a step, shared by all GPUs; causal. A run is ended when it has made --steps
steps, before it saves. Without --case: recompute none, selective, sequence-selective and full.

Writes <out>.md and <out>.json after every program; the table goes to stdout, too. Its columns:
  step          median of all steps but the first, and the range
  MFU           against --peak-tflops: operations of the model, without what is computed again
  arrays        the largest sum of all arrays on one GPU (PyTorch: max_memory_allocated)
  GPU           the most that nvidia-smi showed on one GPU, everything included
  host          pinned and other arrays on the host, of one rank
  attention     how often attention's forward pass was computed, by unmasked pairs
The exit status is 1 when a program failed; the table then has what the others gave.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import launch

HERE = pathlib.Path(__file__).resolve().parent
CASES = [f"{policy}: memory.recompute={policy}" for policy in ("none", "selective", "sequence-selective", "full")]
HEADINGS = ("tokens", "program", "recompute", "tokens/s a GPU", "step, s", "MFU", "arrays, GiB", "GPU, GiB", "host, GiB", "attention")
GIB = 2**30


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the program annulus-train of a build for GPUs")
    parser.add_argument("--config", type=pathlib.Path, default=HERE.parents[1] / "data" / "llama-7b.toml")
    parser.add_argument("--shards", required=True, help="the run's data.shards")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[65536])
    parser.add_argument("--case", nargs="+", default=CASES, metavar="'NAME: KEY=VALUE …'", help="keys of the configuration")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys that all cases have")
    parser.add_argument("--pytorch", nargs="*", default=[], choices=("full", "selective", "none"), help="recompute of PyTorch's runs")
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first is not counted")
    parser.add_argument("--peak-tflops", type=float, default=989.4)
    parser.add_argument("--mpirun", nargs="+", default=["mpirun", "--allow-run-as-root", "--bind-to", "none"])
    parser.add_argument("--limit", type=float, default=600, help="seconds that one program may take")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("training"))
    options = parser.parse_args()
    if not os.access(options.train, os.X_OK):
        parser.error(f"--train {options.train} is no program: build it with ./annulus build cuda")
    if not options.config.is_file():
        parser.error(f"--config {options.config} is no file")
    if options.steps < 2:
        parser.error("--steps: give at least 2, as the first is not counted")
    for case in options.case:
        if ":" not in case or any("=" not in key for key in case.split(":", 1)[1].split()):
            parser.error(f"--case '{case}': give a name, a colon and keys, such as 'full: memory.recompute=full'")
    options.runs = options.out.parent / (options.out.name + "-runs")
    if options.runs.exists():  # its records would be taken for those of the new runs
        parser.error(f"{options.runs} exists: remove it, or choose another --out")
    here = launch.check_gpus(parser)
    if options.gpus > here:
        parser.error(f"--gpus {options.gpus}: this machine has {here}")
    options.without_pytorch = not options.pytorch
    launch.check_torch(parser, options)
    return options


def used_memory():
    """Bytes of the GPU that has most in use."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True)
    return max((int(line) for line in listed.stdout.split() if line.isdigit()), default=0) * 2**20


def end_group(program, used_before):
    """Launchers end their ranks, which have groups of their own, a second after SIGTERM. What a rank had is free some seconds
    after its end, when the system has taken back its pinned memory."""
    try:
        os.killpg(program.pid, signal.SIGTERM)
        program.wait(30)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    end = time.monotonic() + 60
    while used_memory() > used_before + GIB and time.monotonic() < end:
        time.sleep(0.5)


def watch(command, log, limit, enough):
    """Runs a program until it ends, or `enough()`; returns whether that came, and the most GPU memory seen."""
    print(f"# {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    before = most = used_memory()
    end = time.monotonic() + limit
    with open(log, "w") as file:
        program = subprocess.Popen(list(map(str, command)), stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        while program.poll() is None and time.monotonic() < end and not enough():
            most = max(most, used_memory())
            time.sleep(0.1)
        end_group(program, before)
    good = enough()
    if not good:
        last = log.read_text(errors="replace").splitlines()[-15:]
        print(f"FAILED; {log} ends with:", *last, sep="\n  ", file=sys.stderr, flush=True)
    return good, most


def records(file):
    """Those of a metrics.jsonl that is still being written."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def annulus(options, tokens, case, folder):
    name, keys = (part.strip() for part in case.split(":", 1))
    settings = [f"data.sequence_length={tokens}", f"data.shards={options.shards}", f"run.folder={folder}", "run.device=gpu",
                f"run.peak_tflops={options.peak_tflops}", "train.steps=1000000", "train.micro_batches=1", "checkpoint.every=0",
                "attention.mask=causal", *options.set, *keys.split()]
    command = [*options.mpirun, "-n", options.gpus, options.train, options.config]
    for setting in settings:
        command += ["--set", setting]
    metrics = folder / "metrics.jsonl"
    good, used = watch(command, folder.with_suffix(".log"), options.limit, lambda: len(records(metrics)) >= options.steps)
    found = records(metrics)[:options.steps]
    row = {"tokens": tokens, "program": "Annulus", "recompute": name, "settings": keys, "gpu": used}
    if good:
        memory = found[-1]["peak_memory_bytes"]
        row |= {"seconds": [r["step_seconds"] for r in found], "losses": [r["loss"] for r in found], "mfu": [r["mfu"] for r in found],
                "arrays": memory["device"]["total"], "host": memory["total"], "memory": memory,
                "attention": found[-1]["forward_attention"]}
    return row, good


def pytorch(options, tokens, recompute, folder):
    out = folder.with_suffix(".json")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", options.gpus, HERE / "training_peer.py",
               options.config, "--tokens", tokens, "--recompute", recompute, "--steps", options.steps, "--out", out]
    _, used = watch(command, folder.with_suffix(".log"), options.limit, out.exists)
    row = {"tokens": tokens, "program": "PyTorch", "recompute": recompute, "gpu": used}
    if out.exists():
        report = json.loads(out.read_text())
        row |= report | {"mfu": [report["flops"] / s / options.gpus / options.peak_tflops / 1e12 for s in report["seconds"]]}
    return row, out.exists()


def cells(options, row):
    if "seconds" not in row:
        return [row["tokens"], row["program"], row["recompute"], "failed", "", "", "", f"{row['gpu'] / GIB:.1f}", "", ""]
    times = row["seconds"][1:]
    middle = statistics.median(times)
    mfu = statistics.median(row["mfu"][1:])
    return [row["tokens"], row["program"], row["recompute"], f"{row['tokens'] / options.gpus / middle:.0f}",
            f"{middle:.2f} ({min(times):.2f} to {max(times):.2f})", f"{100 * mfu:.1f} %", f"{row['arrays'] / GIB:.1f}",
            f"{row['gpu'] / GIB:.1f}", f"{row['host'] / GIB:.1f}" if "host" in row else "",
            f"{row['attention']:.2f}" if "attention" in row else ""]


def markdown(options, rows, _):
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    lines += ["| " + " | ".join(map(str, cells(options, row))) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main():
    options = parse()
    results = launch.Results(options, markdown)
    options.runs.mkdir()
    number = 0
    for tokens in options.tokens:
        for work, kind in [(annulus, case) for case in options.case] + [(pytorch, kind) for kind in options.pytorch]:
            number += 1
            row, good = work(options, tokens, kind, options.runs / f"{number}")
            results.add([row], row.get("memory", {}), good)
    print(results.text, end="")
    return 0 if results.good else 1


if __name__ == "__main__":
    sys.exit(main())
