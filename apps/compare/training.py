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

The columns of the table:
  step          median of all steps but the first, and the range; with --steps 1 the first
  MFU           against --peak-tflops: operations of the model, without what is computed again
  exposed       seconds of a step in which attention waited for other ranks: of the rank that waited longest, and in brackets of the one
                that waited least, which no slower rank keeps waiting; and in which sharding did
  arrays        the largest sum of all arrays on one GPU (PyTorch: max_memory_allocated)
  GPU           the most that nvidia-smi showed on one of the visible GPUs, everything included
  host          pinned and other arrays on the host, of one rank
  attention     how often attention's forward pass was computed, by unmasked pairs
  slowest       time of the slowest rank's attention kernels for the same work over the mean of the ranks: others wait for it, which
                counts as exposed
With --cluster, which is measured first where there is no such file (annulus-bench links), one column more:
  of its rates  the time that annulus-train --plan-memory predicts by that file over the measured time: the share of what links, kernels
                and products of this machine allow. Policies are predicted as the keys name them, so name one in the place of auto
With attention.sparsity the share of the pairs that was computed, recall of the steps with an audit, and imbalance over ranks and plan steps.
With train.parts_every=1 among the keys a second table has the seconds of a step by part, the mean of all steps but the first.

With --continue missing the same command measures the rest, with other --tokens, too: a table of hours in commands of minutes.
"""

import itertools
import json
import pathlib
import statistics
import sys

import launch

DATA = launch.ROOT / "data"
CASES = [f"{policy}: memory.recompute={policy}" for policy in ("none", "selective", "sequence-selective", "full")]
HEADINGS = ("tokens", "program", "case", "tokens/s a GPU", "step, s", "MFU", "exposed, s", "arrays, GiB", "GPU, GiB", "host, GiB",
            "attention", "slowest")
OF_STEPS = ("seconds", "losses", "grad_norms", "exposed", "exposed_sharding", "least_exposed", "mfu")  # of a row: a number for each step


def parser(doc, out, cases=None, sessions=False):
    """What all scripts take that run annulus-train. `cases`: the default of --case, of those that have it."""
    made = launch.parser(doc, "annulus-train", out, sessions=sessions)
    if cases:
        made.add_argument("--case", nargs="+", default=cases, metavar="'NAME: KEY=VALUE …'", help="keys of the configuration")
    made.add_argument("--config", "--model", type=pathlib.Path, default=DATA / "llama-7b.toml",
                      help="the configuration whose model is trained")
    made.add_argument("--shards", required=True, help="the run's data.shards")
    run_options(made)
    return made


def run_options(made):
    """Of runs, whatever they train."""
    made.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: ranks on the host's cores, for a try")
    made.add_argument("--gpus", type=int, default=1, help="with --device cpu: ranks")
    made.add_argument("--ranks", type=int, default=0, help="0: one a GPU")
    made.add_argument("--nodes", type=int, default=1, help="machines of consecutive ranks that this one stands for")
    made.add_argument("--hosts", type=int, default=1, help="machines like this one, to which --mpirun deals the ranks (srun in a job of Slurm)")
    made.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="keys that all cases have")
    made.add_argument("--peak-tflops", type=float, default=989.4, help="of one GPU, for MFU")
    made.add_argument("--runs", type=pathlib.Path, help="folder of logs, metrics and checkpoints (default: <out>-runs)")


def check(parser, options):
    """Ends the program with what is missing, before anything runs; opens the folder of the runs."""
    if hasattr(options, "case"):
        options.case = split_cases(parser, options.case)
    if options.device == "gpu":
        launch.deal(parser, options)
    else:
        options.gpus = options.ranks = options.ranks or options.gpus
    launch.check(parser, options)
    options.made = launch.made_by(options)
    launch.check_card(parser, options)
    launch.check_nodes(parser, options, [options.nodes])
    if not options.config.is_file():
        parser.error(f"--config {options.config} is no file")
    options.runs = options.runs or options.out.with_name(options.out.name + "-runs")
    if getattr(options, "more", None):
        further = (options.runs.with_name(f"{options.runs.name}-{session}") for session in itertools.count(2))
        options.runs = next(folder for folder in itertools.chain([options.runs], further) if not folder.exists())
    if options.runs.exists():  # its records would be taken for those of the new runs
        parser.error(f"{options.runs} exists: remove it, or choose another --runs or --out" + (", or give --continue" if hasattr(options, "more") else ""))
    options.runs.mkdir(parents=True)


def split_cases(parser, cases):
    """(name, keys) of each."""
    split = []
    for case in cases:
        name, colon, keys = (part.strip() for part in case.partition(":"))
        if not name or not colon or any("=" not in key for key in keys.split()):
            parser.error(f"--case '{case}': give a name, a colon and keys, such as 'full: memory.recompute=full'")
        split.append((name, keys.split()))
    return split


def parse():
    made = parser(__doc__, "training", CASES, sessions=True)
    made.add_argument("--tokens", type=int, nargs="+", default=[65536])
    made.add_argument("--pytorch", nargs="*", default=[], choices=("full", "selective", "none"), help="recompute of PyTorch's runs")
    made.add_argument("--steps", type=int, default=4, help="of each run; the first of several is not counted")
    made.add_argument("--cluster", type=pathlib.Path, help="cluster file of these ranks, measured where it is missing: compare with what it predicts")
    options = made.parse_args()
    if options.pytorch and (options.device == "cpu" or options.ranks not in (0, options.gpus) or options.nodes > 1):
        made.error("--pytorch runs on one node with a GPU a rank: leave out --device, --ranks and --nodes")
    options.without_pytorch = not options.pytorch
    check(made, options)
    return options


def records(file):
    """Those of a metrics.jsonl that is still being written."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def train_command(options, folder, settings):
    """annulus-train on all ranks, in a folder, with `settings` ("key=value") on top of what the options say; the last one counts."""
    on_gpus = [f"run.peak_tflops={options.peak_tflops}"] if options.device == "gpu" else []
    if options.nodes > 1:
        on_gpus += [f"parallel.ranks_per_node={options.ranks // options.nodes}"] + (["parallel.transport=nccl"] if on_gpus else [])
    settings = [*on_gpus, f"data.shards={options.shards}", f"run.folder={folder}", f"run.device={options.device}", "train.steps=1000000",
                "train.micro_batches=1", "checkpoint.every=0", "attention.mask=causal", *settings]
    return [*launch.on_ranks(options, options.nodes), options.program, options.config, *launch.settings(settings)]


def annulus(options, tokens, name, keys, folder):
    """A row of a run of Annulus, and whether it ended well. `keys`: on top of all others."""
    command = train_command(options, folder, [f"data.sequence_length={tokens}", *options.set, *keys])
    metrics = folder / "metrics.jsonl"
    good, used = launch.run(command, folder.with_suffix(".log"), launch.limit(options), lambda: len(records(metrics)) >= options.steps)
    made = records(metrics)[:options.steps]
    found = [r for r in made if "attention_recall" not in r] or made  # an audit takes time of its own
    row = {"tokens": tokens, "program": "Annulus", "case": name, "settings": " ".join(keys), "gpu": used}
    if good:
        memory = found[-1]["peak_memory_bytes"]
        row |= {key: [r[of] for r in found] for key, of in (("seconds", "step_seconds"), ("losses", "loss"), ("grad_norms", "grad_norm"),
                                                            ("exposed", "exposed_communication_seconds"), ("exposed_sharding", "exposed_sharding_seconds"),
                                                            ("least_exposed", "least_exposed_communication_seconds"))}
        row |= {"memory": memory, "tokens_per_step": found[0]["tokens"], "arrays": memory.get("device", memory)["total"],
                "attention": found[-1]["forward_attention"]}
        if slowest := [r["slowest_compute_share"] for r in found if "slowest_compute_share" in r]:
            row["slowest"] = statistics.median(slowest)
        if sparse := [r for r in found if "attention_imbalance" in r]:
            row["density"] = statistics.median(r["attention_density"] for r in sparse)
            row["imbalance"] = [statistics.median(r["attention_imbalance"][over] for r in sparse) for over in ("worker", "step")]
            row["recall"] = next((r["attention_recall"] for r in reversed(made) if "attention_recall" in r), None)
        if parted := [r["parts"] for r in counted(found) if "parts" in r]:
            row["parts"] = {part: statistics.mean(r.get(part, 0) for r in parted) for part in sorted(set().union(*parted))}
        if "device" in memory:
            row["host"] = memory["total"]
        if "mfu" in found[0]:  # of a rank, which may have a part of a GPU
            row["mfu"] = [r["mfu"] * options.ranks / options.gpus for r in found]
    return row, good


def pytorch(options, tokens, recompute, _, folder):
    """The same of PyTorch."""
    out = folder.with_suffix(".json")
    command = [*launch.torchrun(options.gpus, "training_peer.py"), options.config, "--tokens", tokens, "--recompute", recompute, "--steps", options.steps, "--out", out]
    good, used = launch.run(command, folder.with_suffix(".log"), launch.limit(options), out.exists)
    row = {"tokens": tokens, "program": "PyTorch", "case": recompute, "gpu": used, "tokens_per_step": tokens}
    if good:
        report = json.loads(out.read_text())
        row |= report | {"mfu": [report["flops"] / s / options.gpus / options.peak_tflops / 1e12 for s in report["seconds"]]}
    return row, good


def counted(values):
    return values[1:] or values


def tokens_per_second(options, row):
    """Of a GPU, in the median of the steps that count."""
    return row["tokens_per_step"] / options.gpus / statistics.median(counted(row["seconds"]))


def measure_rates(options):
    """Makes the file of --cluster. This program ends where that fails."""
    bench = launch.with_other(options, program=options.program.with_name("annulus-bench"))
    shape = launch.heads_of(options.config, options.set) | {"dtype": "f32" if options.device == "cpu" else "bf16"}
    if not launch.links(bench, options.nodes, options.tokens, shape, options.cluster, options.runs / "links"):
        sys.exit(1)


def predicted(options, tokens, keys):
    """Seconds of a step by the rates of --cluster; nothing where they cannot be predicted."""
    keys = [f"run.device={options.device}", *options.set, *keys]
    report, _ = launch.plan_memory(options, options.config, options.ranks, options.ranks // options.nodes, options.cluster, tokens, keys, options.runs / "predicted")
    return {"predicted_seconds": report["configured"]["seconds"]} if report else {}


def selected(row):
    if "density" not in row:
        return ""
    recall = f", recall {row['recall']:.3f}" if row["recall"] is not None else ""
    return f"{100 * row['density']:.2f} %{recall}, imbalance {row['imbalance'][0]:.3f} / {row['imbalance'][1]:.3f}"


def cells(options, row):
    gib = lambda key: f"{row[key] / launch.GIB:.1f}" if row.get(key) else ""  # noqa: E731
    if "seconds" not in row:
        return [row["tokens"], row["program"], row["case"], row.get("error", "failed"), "", "", "", "", gib("gpu")]
    times = counted(row["seconds"])
    median = lambda key: statistics.median(counted(row[key]))  # noqa: E731
    exposed = f"{median('exposed'):.2f} ({median('least_exposed'):.2f}) / {median('exposed_sharding'):.2f}" if "exposed" in row else ""
    return [row["tokens"], row["program"], row["case"], f"{tokens_per_second(options, row):.0f}",
            launch.with_range(times),
            f"{100 * statistics.median(counted(row['mfu'])):.1f} %" if "mfu" in row else "", exposed, gib("arrays"), gib("gpu"), gib("host"),
            f"{row['attention']:.2f}" if "attention" in row else "", f"{row['slowest']:.3f}" if "slowest" in row else ""]


def parts_table(rows):
    """Seconds of a step by part, the parts that take most first; their sum is the mean step."""
    timed = [row for row in rows if "parts" in row]
    most = {part: max(row["parts"].get(part, 0) for row in timed) for row in timed for part in row["parts"]}
    order = sorted(most, key=most.get, reverse=True)
    cells = [[row["tokens"], row["case"], f"{sum(row['parts'].values()):.3f}", *(f"{row['parts'].get(part, 0):.3f}" for part in order)] for row in timed]
    return launch.table(("tokens", "case", "step, s", *(part.replace("_", " ") for part in order)), cells)


def joined(rows):
    """Rows of which those of one case, measured in several sessions (--continue all), are one, with the counted steps of all and the median of
    each session."""
    cases = launch.grouped(rows, lambda row: (*(row.get(name) for name in ("setting", "limit", "tokens", "program", "case", "settings")), "seconds" in row))
    return [same[0] | {name: [same[0][name][0], *(value for row in same for value in counted(row[name]))] for name in OF_STEPS if name in same[0]}
            | {"sessions": [statistics.median(counted(row["seconds"])) for row in same if "seconds" in row]} for same in cases.values()]


def of_rates(row):
    if "predicted_seconds" not in row or "seconds" not in row:
        return ""
    return f"{100 * row['predicted_seconds'] / statistics.median(counted(row['seconds'])):.1f} %"


def markdown(options, rows, _):
    head, rows = launch.origin(rows), joined(rows)
    more = {name: cell for name, cell, of in (("of its rates", of_rates, "predicted_seconds"), ("selected", selected, "density")) if any(of in row for row in rows)}
    lines = [[*line, *[""] * (len(HEADINGS) - len(line)), *(cell(row) for cell in more.values())] for row in rows for line in [cells(options, row)]]
    return head + launch.table((*HEADINGS, *more), lines) + ("\n" + parts_table(rows) if any("parts" in row for row in rows) else "")


def run_all(options, results, programs, prefix=""):
    """Adds a row to the results for every (work, tokens, name, keys, more): `work` is annulus, pytorch or another that makes a row, `more` joins it.
    `prefix`: of the names of folders, where a script calls this more than once."""
    for number, (work, tokens, name, keys, more) in enumerate(programs, 1):
        program = "PyTorch" if work is pytorch else "Annulus"
        words = {key: value for key, value in more.items() if isinstance(value, str)}  # the others are numbers that go with it
        if not results.lacks({"tokens": tokens, "program": program, "case": name} | words):
            continue
        if launch.time_for(options, getattr(options, "steps", 0) * more.get("predicted_seconds", more.get("least_seconds", 0))):
            row, good = work(options, tokens, name, keys, options.runs / f"{prefix}{number}")
        else:
            row, good = {"tokens": tokens, "program": program, "case": name, "error": f"not run: {launch.limit(options):.0f} s of the budget were left"}, False
        results.add([row | more], row.get("memory", {}), good)


def main():
    options = parse()
    if options.cluster and not options.cluster.exists():
        measure_rates(options)
    programs = []
    for tokens in options.tokens:
        ours = [(annulus, tokens, name, keys, predicted(options, tokens, keys) if options.cluster else {}) for name, keys in options.case]
        least = min(more.get("predicted_seconds", 0) for *_, more in ours)  # PyTorch is taken to be no faster
        programs += ours + [(pytorch, tokens, kind, [], {"least_seconds": least}) for kind in options.pytorch]
    results = launch.Results(options, markdown)
    run_all(options, results, programs)
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
