#!/usr/bin/env python3
"""One optimizer step of a model in several settings of its configuration, compared with PyTorch, in one go and in one table.

usage: training.py --train build/cuda/bin/annulus-train --shards SHARDS [--config data/llama-7b.toml] [--gpus 2]
                   [--tokens 65536 131072] [--case 'NAME: KEY=VALUE …' …] [--pytorch full selective none] [--out training]

Each case is a run of annulus-train with the keys of the case on top of the configuration; for each number of tokens all
cases run one after the other, then PyTorch (training_peer.py: FSDP2, context_parallel, torch.compile, cuDNN) with the same shape
and each of the given kinds of recompute. One sequence a step, shared by all GPUs; causal. A run is ended when it has made --steps
steps, before it saves. Without --case: recompute none, selective, sequence-selective and full.

With --ranks there are more ranks than GPUs, on --nodes emulated nodes that have the same GPUs: ranks take turns on them, which shows that
a setting runs and not how fast. --device cpu takes ranks on the host's cores in the place of GPUs, for a try.

Writes <out>.md and <out>.json after every program; the table goes to stdout, too. Its columns:
  step          median of all steps but the first, and the range; with --steps 1 the first
  MFU           against --peak-tflops: operations of the model, without what is computed again
  exposed       seconds of a step in which attention, and in which sharding, waited for other ranks
  arrays        the largest sum of all arrays on one GPU (PyTorch: max_memory_allocated)
  GPU           the most that nvidia-smi showed on one of the visible GPUs, everything included
  host          pinned and other arrays on the host, of one rank
  attention     how often attention's forward pass was computed, by unmasked pairs
The exit status is 1 when a program failed or did not run for want of time (--budget); the table then has what the others gave.
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

import launch

HERE = pathlib.Path(__file__).resolve().parent
CASES = [f"{policy}: memory.recompute={policy}" for policy in ("none", "selective", "sequence-selective", "full")]
HEADINGS = ("tokens", "program", "case", "tokens/s a GPU", "step, s", "MFU", "exposed, s", "arrays, GiB", "GPU, GiB", "host, GiB",
            "attention")
GIB = 2**30


def common_parser():
    """What all scripts take that run annulus-train."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the program annulus-train of a build for GPUs")
    parser.add_argument("--config", "--model", type=pathlib.Path, default=HERE.parents[1] / "data" / "llama-7b.toml",
                        help="the configuration whose model is trained")
    parser.add_argument("--shards", required=True, help="the run's data.shards")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: ranks on the host's cores, for a try")
    parser.add_argument("--gpus", type=int, default=1, help="with --device cpu: ranks")
    parser.add_argument("--ranks", type=int, default=0, help="0: one a GPU")
    parser.add_argument("--nodes", type=int, default=1, help="machines of consecutive ranks that this one stands for")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys that all cases have")
    parser.add_argument("--peak-tflops", type=float, default=989.4, help="of one GPU, for MFU")
    parser.add_argument("--mpirun", type=shlex.split, default="mpirun --allow-run-as-root --bind-to none",
                        help="with its flags, in one string")
    parser.add_argument("--limit", type=float, default=600, help="seconds that one program may take")
    parser.add_argument("--budget", type=float, default=0, help="seconds for all programs together; 0: any number")
    parser.add_argument("--runs", type=pathlib.Path, help="folder of logs, metrics and checkpoints (default: <out>-runs)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("training"), help="files without their ending")
    return parser


def check(parser, options):
    """Ends the program with what is missing, before anything runs; opens the folder of the runs."""
    if not os.access(options.train, os.X_OK):
        parser.error(f"--train {options.train} is no program: build it with ./annulus build cuda")
    if not options.config.is_file():
        parser.error(f"--config {options.config} is no file")
    if not options.mpirun or shutil.which(options.mpirun[0]) is None:
        parser.error(f"--mpirun '{shlex.join(options.mpirun)}': there is no such program in PATH")
    options.runs = options.runs or options.out.parent / (options.out.name + "-runs")
    if options.runs.exists():  # its records would be taken for those of the new runs
        parser.error(f"{options.runs} exists: remove it, or choose another --runs or --out")
    if options.device == "gpu":
        here = launch.check_gpus(parser)
        if options.gpus > here:
            parser.error(f"--gpus {options.gpus}: this machine has {here}")
    options.ranks = options.ranks or options.gpus
    if options.nodes < 1 or options.ranks < 1 or options.ranks % options.nodes:
        parser.error(f"{options.ranks} ranks cannot be dealt to --nodes {options.nodes}: give a divisor")
    if options.device == "gpu" and options.ranks > options.gpus * options.nodes:
        parser.error(f"--nodes {options.nodes} has {options.ranks // options.nodes} ranks a node for {options.gpus} GPUs, and NCCL refuses two "
                     f"ranks of a node on one: give --nodes {-(-options.ranks // options.gpus)} or more")
    options.time = launch.Budget(options.budget, options.limit)
    options.runs.mkdir(parents=True)


def split_cases(parser, cases):
    """(name, keys) of each."""
    split = []
    for case in cases:
        name, _, keys = (part.strip() for part in case.partition(":"))
        if not name or ":" not in case or any("=" not in key for key in keys.split()):
            parser.error(f"--case '{case}': give a name, a colon and keys, such as 'full: memory.recompute=full'")
        split.append((name, keys.split()))
    return split


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[common_parser()])
    parser.add_argument("--tokens", type=int, nargs="+", default=[65536])
    parser.add_argument("--case", nargs="+", default=CASES, metavar="'NAME: KEY=VALUE …'", help="keys of the configuration")
    parser.add_argument("--pytorch", nargs="*", default=[], choices=("full", "selective", "none"), help="recompute of PyTorch's runs")
    parser.add_argument("--pytorch-tokens", type=int, nargs="+", help="of --tokens, those that PyTorch has, too; default: all")
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first of several is not counted")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps: give 1 or more")
    options.case = split_cases(parser, options.case)
    if options.pytorch and (options.device == "cpu" or options.ranks not in (0, options.gpus) or options.nodes > 1):
        parser.error("--pytorch runs on one node with a GPU a rank: leave out --device, --ranks and --nodes")
    options.without_pytorch = not options.pytorch
    launch.check_torch(parser, options)
    check(parser, options)
    return options


def used_memory():
    """Bytes of the GPU that has most in use, of those that CUDA_VISIBLE_DEVICES names; 0 where there is none."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    query += ["--id", visible] if visible else []
    try:
        listed = subprocess.run(query, capture_output=True, text=True)
    except FileNotFoundError:
        return 0
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
    wait_for_memory(used_before)


def wait_for_memory(used_before):
    end = time.monotonic() + 60
    while used_memory() > used_before + GIB and time.monotonic() < end:
        time.sleep(0.5)


def report_failure(log):
    last = log.read_text(errors="replace").splitlines()[-15:]
    print(f"FAILED; {log} ends with:", *last, sep="\n  ", file=sys.stderr, flush=True)


def watch(command, log, limit, enough):
    """Runs a program until it ends, or `enough()`; returns whether that came, and the most GPU memory seen."""
    print(f"# {shlex.join(map(str, command))}", file=sys.stderr, flush=True)
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
        report_failure(log)
    return good, most


def records(file):
    """Those of a metrics.jsonl that is still being written."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def train_command(options, folder, settings):
    """annulus-train on all ranks, in a folder, with `settings` ("key=value") on top of what the options say; the last one counts."""
    settings = [f"data.shards={options.shards}", f"run.folder={folder}", f"run.device={options.device}", "train.steps=1000000",
                "train.micro_batches=1", "checkpoint.every=0", "attention.mask=causal", *settings]
    if options.device == "gpu":
        settings.insert(0, f"run.peak_tflops={options.peak_tflops}")
    if options.nodes > 1:
        settings.insert(0, f"parallel.ranks_per_node={options.ranks // options.nodes}")
        if options.device == "gpu":
            settings.insert(0, "parallel.transport=nccl")
    command = [*launch.on_ranks(options.mpirun, options.ranks, options.nodes), options.train, options.config]
    for setting in settings:
        command += ["--set", setting]
    return command


def annulus(options, tokens, case, folder):
    """A row of a run of Annulus, and whether it ended well. `case`: its name, and keys on top of all others."""
    name, keys = case
    command = train_command(options, folder, [f"data.sequence_length={tokens}", *options.set, *keys])
    metrics = folder / "metrics.jsonl"
    good, used = watch(command, folder.with_suffix(".log"), options.time.limit(), lambda: len(records(metrics)) >= options.steps)
    found = records(metrics)[:options.steps]
    row = {"tokens": tokens, "program": "Annulus", "case": name, "settings": " ".join(keys), "gpu": used}
    if good:
        memory = found[-1]["peak_memory_bytes"]
        of_all = lambda key: [r[key] for r in found]  # noqa: E731
        row |= {"seconds": of_all("step_seconds"), "losses": of_all("loss"), "grad_norms": of_all("grad_norm"), "memory": memory,
                "tokens_per_step": found[0]["tokens"], "arrays": memory.get("device", memory)["total"],
                "exposed": of_all("exposed_communication_seconds"), "exposed_sharding": of_all("exposed_sharding_seconds"),
                "attention": found[-1]["forward_attention"]}
        if "device" in memory:
            row["host"] = memory["total"]
        if "mfu" in found[0]:  # of a rank, which may have a part of a GPU
            row["mfu"] = [r["mfu"] * options.ranks / options.gpus for r in found]
    return row, good


def pytorch(options, tokens, case, folder):
    """The same of PyTorch; the name of the case is its recompute."""
    recompute, _ = case
    out = folder.with_suffix(".json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", options.gpus, HERE / "training_peer.py",
               options.config, "--tokens", tokens, "--recompute", recompute, "--steps", options.steps, "--out", out]
    _, used = watch(command, folder.with_suffix(".log"), options.time.limit(), out.exists)
    row = {"tokens": tokens, "program": "PyTorch", "case": recompute, "gpu": used, "tokens_per_step": tokens}
    if out.exists():
        report = json.loads(out.read_text())
        row |= report | {"mfu": [report["flops"] / s / options.gpus / options.peak_tflops / 1e12 for s in report["seconds"]]}
    return row, out.exists()


def counted(values):
    return values[1:] or values


def tokens_per_second(options, row):
    """Of a GPU, in the median of the steps that count."""
    return row["tokens_per_step"] / options.gpus / statistics.median(counted(row["seconds"]))


def cells(options, row):
    gib = lambda key: f"{row[key] / GIB:.1f}" if row.get(key) else ""  # noqa: E731
    if "seconds" not in row:
        return [row["tokens"], row["program"], row["case"], row.get("error", "failed"), "", "", "", "", gib("gpu"), "", ""]
    times = counted(row["seconds"])
    exposed = " / ".join(f"{statistics.median(counted(row[key])):.2f}" for key in ("exposed", "exposed_sharding") if key in row)
    return [row["tokens"], row["program"], row["case"], f"{tokens_per_second(options, row):.0f}",
            f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})",
            f"{100 * statistics.median(counted(row['mfu'])):.1f} %" if "mfu" in row else "", exposed, gib("arrays"), gib("gpu"), gib("host"),
            f"{row['attention']:.2f}" if "attention" in row else ""]


def markdown_table(headings, rows):
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def markdown(options, rows, _):
    return markdown_table(HEADINGS, [cells(options, row) for row in rows])


def run_all(options, results, programs, prefix=""):
    """Adds a row to the results for every (work, tokens, case, more): `work` is annulus or pytorch, `more` joins the row. `prefix`:
    of the names of folders, where a script calls this more than once."""
    for number, (work, tokens, case, more) in enumerate(programs, 1):
        if options.time.spent():
            row, good = {"tokens": tokens, "program": "Annulus" if work is annulus else "PyTorch", "case": case[0],
                         "error": "not run: the budget was spent"}, False
        else:
            row, good = work(options, tokens, case, options.runs / f"{prefix}{number}")
        results.add([row | more], row.get("memory", {}), good)


def main():
    options = parse()
    with_pytorch = options.tokens if options.pytorch_tokens is None else options.pytorch_tokens
    programs = []
    for tokens in options.tokens:
        programs += [(annulus, tokens, case, {}) for case in options.case]
        programs += [(pytorch, tokens, (kind, []), {}) for kind in options.pytorch if tokens in with_pytorch]
    results = launch.Results(options, markdown)
    run_all(options, results, programs)
    print(results.text, end="")
    return 0 if results.good else 1


if __name__ == "__main__":
    sys.exit(main())
