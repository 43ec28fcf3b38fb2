#!/usr/bin/env python3
"""The tables and figures of BurstEngine, BurstAttention, DistFlashAttn, Striped Attention and MTraining: what each paper printed, what
is predicted, and what was measured here, in one table.

usage: papers.py --train build/cpu/bin/annulus-train --predict --table burstengine:2 striped:2 [--figure burstengine:14] [--range] [--out papers]
       papers.py --train build/cuda/bin/annulus-train --shards SHARDS --gpus 8 --table burstengine:5

The numbers of the papers and the settings of their rows lie in data/papers; a name that is not there is refused with those that are.
--table and --figure tell burstengine:2 from burstengine:2; entries that are neither (striped:tms) go with both.

Predicted: annulus-train --plan-memory and annulus-plan, which stand beside --train, by the cluster file of the entry. Most of these are
guesses: --range predicts with all rates at the low end of their range and with all at the high one, too (annulus-topology --node-type). What cannot be predicted
says why. With --predict nothing else runs: no GPU, no MPI, no data. Rows of sparse attention count a recorded selection: that of data/papers, or --selection.

Measured: runs of annulus-train as in training.py, or of annulus-bench attention as in attention.py. A row is measured where the ranks
are as many as the row has. --ranks and --tokens put others in the place of all rows', and --set goes over their keys, for prediction and
measurement alike: a table for the GPUs at hand, whose paper column stays that of the paper. --nodes: as in training.py. On several machines
--mpirun names what starts ranks on all of them and --hosts how many there are (slurm/paper.sbatch does so).

Writes <out>.md, <out>.csv and <out>.json after every row, and with --html <out>.html. The exit status is 1 when a program failed.
"""

import argparse
import pathlib
import statistics
import sys
import tomllib

import attention
import launch
import training

PAPERS = pathlib.Path(__file__).resolve().parents[2] / "data" / "papers"
COLUMNS = ("entry", "page", "case", "quantity", "unit", "paper", "predicted", "predicted_low", "predicted_high", "measured", "predicted_note", "measured_note")
HEADINGS = ("case", "quantity", "unit", "paper", "predicted", "measured")
BOUNDS = ("usual", "low", "high")
LENGTHS = [2**i * 65536 for i in range(9)]  # that `longest` tries
DOES_NOT_FIT = 3  # exit status of annulus-train --plan-memory
NARROW = {"q", "k", "v", "do"}  # tensors that travel in 16 bits; the others in 32
ATTENTION_PARTS = ("attention", "attention_backward", "attention_recompute")  # of a step (train.parts_every), waits included


def entries(folder=PAPERS):
    """All entries of the data files, by (form, 'paper:name')."""
    found = {}
    for file in sorted(folder.glob("*.toml")):
        with open(file, "rb") as text:
            data = tomllib.load(text)
        for entry in data["entry"]:
            key = f"{file.stem}:{entry['name']}"
            found[entry["form"], key] = entry | {"key": key, "paper": data["paper"], "folder": folder}
    return found


def chosen(parser, options):
    """The entries that the options name."""
    known, picked = entries(), []
    for form in ("table", "figure"):
        for key in getattr(options, form):
            entry = known.get((form, key)) or known.get(("claim", key))
            if entry is None:
                names = sorted(name for of, name in known if of in (form, "claim"))
                parser.error(f"--{form} {key}: data/papers has {', '.join(names)}")
            picked.append(entry)
    return picked or list(known.values())


def parse():
    parser = launch.parser(__doc__, "annulus-train", "papers")
    parser.add_argument("--table", nargs="+", default=[], metavar="PAPER:NAME", help="without --table and --figure: everything")
    parser.add_argument("--figure", nargs="+", default=[], metavar="PAPER:NAME")
    parser.add_argument("--predict", action="store_true", help="measure nothing")
    parser.add_argument("--range", action="store_true", help="predict at both ends of guessed rates, too")
    parser.add_argument("--selection", help="recorded selection of sparse attention, as of annulus-plan --sparsity, in the place of the rows' own")
    parser.add_argument("--cluster", type=pathlib.Path, help="cluster file of all rows, in the place of their own: that of the GPUs at hand")
    parser.add_argument("--shards", help="data.shards of the runs that measure")
    parser.add_argument("--tokens", type=int, default=0, help="of all rows, in the place of their own")
    training.run_options(parser)
    options = parser.parse_args()
    options.entries = chosen(parser, options)
    options.asked_ranks, options.all_keys, options.set = options.ranks, options.set, []
    options.config, options.repetitions, options.kernel, options.steps = PAPERS / "models" / "llama-7b.toml", 3, "automatic", 3
    if options.predict:
        launch.check_program(parser, options)
        options.runs = options.runs or options.out.with_name(options.out.name + "-runs")
        options.runs.mkdir(parents=True, exist_ok=True)
        return options
    if not options.shards:
        parser.error("--shards: name the data of the runs that measure, or give --predict")
    training.check(parser, options)
    return options


def cluster_of(options, entry):
    """The file by whose rates an entry is predicted: --cluster, unless they stand for a bound that no machine reaches."""
    own = entry["folder"] / entry["cluster"]
    return (options.cluster if options.cluster and own.parent.name != "ideal" else own).resolve()


def cases(options, entry):
    """The rows of an entry, each with all that it needs."""
    for row in entry["rows"]:
        case = argparse.Namespace(**{"notes": "", "gpu_memory": "", "peak": 0, "refused": "", "selection": "", "against": [], "ranks": 0, "tokens": 0}
                                  | {name: value for name, value in (entry | row).items() if name not in ("columns", "rows", "paper")})
        case.ranks = options.asked_ranks or case.ranks
        case.per_node = case.ranks // max(options.nodes, options.hosts) if options.asked_ranks else min(entry.get("ranks_per_node", case.ranks), case.ranks)
        case.tokens = options.tokens or case.tokens
        case.keys = [key.format(tokens=case.tokens) for key in entry.get("keys", []) + row.get("keys", [])] + options.all_keys
        case.model, case.cluster = entry["folder"] / case.model, cluster_of(options, entry)
        yield case


def setting(case, name, default):
    """A key of a case."""
    return next((key.partition("=")[2] for key in reversed(case.keys) if key.startswith(f"attention.{name}=")), default)


class Refused(Exception):
    """A program says why it does not predict."""


def report_of(options, stem, measure):
    """The JSON that a program writes, which `measure` runs. Raises Refused with its last words where it writes none."""
    if not launch.limit(options):
        raise Refused("not run: the budget was spent")
    report, _ = measure()
    if report is None:
        words = stem.with_name(stem.name + ".log").read_text(errors="replace").strip().splitlines()
        raise Refused(words[-1].rpartition("annulus: rank 0: ")[2] if words else "it wrote nothing")
    return report


# --- predictors: quantities of a case by the rates of a cluster file ------------------------------------------------


def plan_memory(options, case, cluster, keys, stem):
    room = ["--gpu-memory", case.gpu_memory] if case.gpu_memory else []
    settings = [f"data.sequence_length={case.tokens}", "checkpoint.every=0", *keys]
    return report_of(options, stem, lambda: launch.plan_memory(options, case.model, case.ranks, case.per_node, cluster, settings, stem, room, (0, DOES_NOT_FIT)))


def step(options, case, cluster, stem):
    """An optimizer step: speed, MFU, memory."""
    found = of_step(plan_memory(options, case, cluster, case.keys, stem), case)
    if case.against:
        other = [key.format(tokens=case.tokens) for key in case.against]
        found |= compared(found, of_step(plan_memory(options, case, cluster, case.keys + other, stem.with_name(stem.name + "-against")), case))
    return found


def of_step(report, case):
    plan = report["configured"]
    parts, peaks = plan["predicted_seconds"], plan["predicted_peak_bytes"]
    computed = parts["attention"] + parts["recompute_attention"]
    lacks = {} if plan["fits"] else {"lacks": f"lacks {plan['missing_bytes'] / launch.GIB:.1f} GiB"}
    return lacks | speeds(case, report["tokens"], plan["seconds"]) | {
        "mfu": 100 * report["flops"] / plan["seconds"] / case.ranks / (case.peak or 1) / 1e12, "memory": peaks.get("device", peaks)["total"] / 1e9,
        "attention_share": 100 * (computed + parts["exposed_communication"]) / plan["seconds"],
        "communication_overhead": 100 * parts["exposed_communication"] / computed}


def speeds(case, tokens, seconds):
    return {"seconds": seconds, "milliseconds": 1e3 * seconds, "speed": tokens / case.ranks / seconds, "throughput": tokens / seconds}


def compared(found, other):
    return {"against": other["seconds"] / found["seconds"], "more_memory": found["memory"] - other["memory"]}


def longest(options, case, cluster, stem):
    """The longest of LENGTHS that fits."""
    fitting = 0
    for case.tokens in [options.tokens] if options.tokens else LENGTHS:
        if not plan_memory(options, case, cluster, case.keys, stem)["configured"]["fits"]:
            break
        fitting = case.tokens
    return {"longest": fitting / 1024}


def passes(options, case, cluster, stem, names=attention.PASSES):
    """What annulus-plan says of passes."""
    with open(case.model, "rb") as text:
        model = tomllib.load(text)["model"]
    shape = ["--heads", model["heads"], "--kv-heads", model["kv_heads"], "--head-dim", model["head_dim"], "--tokens", case.tokens,
             "--mask", setting(case, "mask", "causal"), "--schedule", setting(case, "schedule", "ring"), "--layout", setting(case, "layout", "zigzag")]
    where = ["--ranks", case.ranks, "--ranks-per-node", case.per_node, "--cluster", cluster]
    sparsity = ["--sparsity", options.selection or case.folder / case.selection] if case.selection else []
    def plan(name, of_pass):
        command = [options.program.with_name("annulus-plan"), *where, *shape, *sparsity, "--pass", name, "--json"]
        return report_of(options, of_pass, lambda: launch.measured(command, of_pass, launch.limit(options)))

    return {name: plan(name, stem.with_name(f"{stem.name}-{name}")) for name in names}


def of_attention(options, case, cluster, stem):
    plans = passes(options, case, cluster, stem)
    forward = plans["forward"]
    idle = 1 - statistics.mean(rank["computing"] for rank in forward["totals"]) / forward["time"]
    return speeds(case, case.tokens, sum(plan["time"] for plan in plans.values())) | {"idle": 100 * idle}


def volume(options, case, cluster, stem):
    """Elements that a rank sends, in units of those of one tensor with all heads of the whole sequence."""
    found = {}
    for name, plan in passes(options, case, cluster, stem).items():
        config = plan["config"]
        elements = [sum(sum(links.values()) / (2 if tensor in NARROW else 4) for tensor, links in rank["sent"].items()) for rank in plan["totals"]]
        found[f"{name}_volume"] = statistics.mean(elements) / (config["tokens"] * config["heads"] * config["head_dim"])
    return found | {"volume": sum(found.values())}


def imbalance(options, case, cluster, stem):
    degrees = passes(options, case, cluster, stem, ["forward"])["forward"]["imbalance"]
    return {f"{kind}_imbalance": degree for kind, degree in degrees.items()}


PREDICTORS = {"step": step, "attention": of_attention, "volume": volume, "imbalance": imbalance, "longest": longest}


def bounds(options, case):
    """(bound, cluster file): that of the case, and with --range the ends of its rates where they are guesses of a type of node."""
    yield "usual", case.cluster
    if options.range and "annulus-topology --node-type" in case.cluster.read_text():
        for bound in BOUNDS[1:]:
            file = options.runs / f"{case.cluster.stem}-{bound}.toml"
            if not file.exists():
                launch.run([options.program.with_name("annulus-topology"), "--node-type", case.cluster.stem, "--bound", bound, "--output", file],
                           file.with_suffix(".log"), launch.limit(options))
            yield bound, file


def predict(options, case, stem):
    """Quantities by bound, or why there are none."""
    if case.refused or case.kind == "measured":
        return {"refused": case.refused or "measured only"}
    try:
        return {bound: PREDICTORS[case.predictor](options, case, cluster, stem.with_name(f"{stem.name}-{bound}")) for bound, cluster in bounds(options, case)}
    except Refused as reason:
        return {"refused": str(reason)}


# --- measurement: the same quantities from runs here -----------------------------------------------------------------


def measure_step(options, case, stem):
    def run(keys, folder):
        row, good = training.annulus(options, case.tokens, case.case, keys, folder)
        if not good:
            raise Refused("failed: see " + str(folder.with_suffix(".log")))
        seconds = statistics.median(training.counted(row["seconds"]))
        found = speeds(case, row["tokens_per_step"], seconds) | {"memory": row["arrays"] / 1e9} | of_parts(row)
        return found | ({"mfu": 100 * statistics.median(training.counted(row["mfu"]))} if "mfu" in row else {})

    options.config = case.model
    found = run(case.keys, stem)
    return found | (compared(found, run(case.keys + case.against, stem.with_name(stem.name + "-against"))) if case.against else {})


def of_parts(row):
    """What train.parts_every tells of attention. The rank that waits least computes longest: its wait is what the prediction counts."""
    if "parts" not in row:
        return {}
    spent, waited = sum(row["parts"].get(part, 0) for part in ATTENTION_PARTS), statistics.mean(training.counted(row["least_exposed"]))
    return {"attention_share": 100 * spent / sum(row["parts"].values()), "communication_overhead": 100 * waited / (spent - waited)}


def measure_attention(options, case, stem):
    with open(case.model, "rb") as text:
        model = tomllib.load(text)["model"]
    here = argparse.Namespace(**vars(options) | {
        "program": options.program.with_name("annulus-bench"), "tokens": [case.tokens], "heads": model["heads"], "head_dim": model["head_dim"],
        "schedules": [setting(case, "schedule", "ring")], "layout": setting(case, "layout", "zigzag")})
    for _, _, found, error in attention.ours(here, options.nodes, stem)[2]:
        if error:
            raise Refused(error)
        return speeds(case, case.tokens, sum(statistics.median(each) for each, _ in found.values()))
    raise Refused("failed")


MEASURED = {"step": measure_step, "attention": measure_attention}


def measure(options, case, stem):
    """Quantities, or why there are none; and whether no program failed."""
    if options.predict:
        return {"refused": ""}, True
    if case.refused or case.kind == "predicted" or case.predictor not in MEASURED:
        return {"refused": "" if case.refused else "predicted only"}, True
    if case.ranks != options.ranks:
        return {"refused": f"{case.ranks} ranks, {options.ranks} here"}, True
    if not launch.limit(options):
        return {"refused": "not run: the budget was spent"}, False
    try:
        return {"usual": MEASURED[case.predictor](options, case, stem)}, True
    except Refused as reason:
        return {"refused": str(reason)}, False


# --- the table -------------------------------------------------------------------------------------------------------


def base_of(column, row):
    """The case over which a column's numbers are stated, for those that are ratios."""
    return column.get("over") or (row.get("over") if column.get("relative") else None)


def value(column, row, found, bound):
    """The number of a column in a row, of what was found of all rows of an entry by case; None without one."""
    of = lambda case: found.get(case, {}).get(bound, {}).get(column.get("quantity"))  # noqa: E731
    own, over, minus = of(row["case"]), base_of(column, row), column.get("minus")
    if own is None or over is None:
        return own
    least, base = of(minus) if minus else 0, of(over)
    return None if base is None or least is None or base == least else (own - least) / (base - least)


def lines(options, rows):
    """A dictionary of COLUMNS for each row and quantity of the entries that have rows."""
    made = []
    for entry in options.entries:
        found = {row["case"]: row for row in rows if row["entry"] == entry["key"] and row["form"] == entry["form"]}
        for row in (row for row in entry["rows"] if row["case"] in found):
            for column in entry["columns"]:
                if column["name"] in row or not ("over" in column or column.get("relative")):  # ratios stand where the paper has them
                    made.append(line(entry, row, column, found))
    return made


def line(entry, row, column, found):
    predicted, measured = ({case: one[kind] for case, one in found.items()} for kind in ("predicted", "measured"))
    of = [value(column, row, predicted, bound) for bound in BOUNDS]
    own = predicted[row["case"]]
    note = column.get("refused") or own.get("refused") or own["usual"].get("lacks", "")
    if of[0] is None and not note:
        note = f"'{base_of(column, row)}' has no prediction"
    here = value(column, row, measured, "usual")
    numbers = zip(("predicted", "predicted_low", "predicted_high", "measured"), (*of, here), strict=True)
    return {"entry": f"{entry['form']} {entry['key']}", "page": entry["page"], "case": row["case"], "quantity": column["name"], "unit": column["unit"],
            "paper": row.get(column["name"], ""), "predicted_note": note, "measured_note": measured[row["case"]].get("refused", ""),
            **{name: "" if number is None else number for name, number in numbers}}


def predicted_text(one):
    if one["predicted"] == "":
        return f"refused: {one['predicted_note']}"
    all_three = [one[name] for name in ("predicted", "predicted_low", "predicted_high") if one[name] != ""]
    least, most = f"{min(all_three):.4g}", f"{max(all_three):.4g}"
    return f"{one['predicted']:.4g}" + (f" ({least} to {most})" if least != most else "") + (f", {one['predicted_note']}" if one["predicted_note"] else "")


def cells(one):
    measured = one["measured_note"] if one["measured"] == "" else f"{one['measured']:.4g}"
    return [one["case"], one["quantity"], one["unit"], "–" if one["paper"] == "" else one["paper"], predicted_text(one), measured or "–"]


def rates_of(options, entry):
    file = cluster_of(options, entry)
    return f"rates of {file.name}" + (" (guessed)" if "guessed = true" in file.read_text() else "")


def markdown(options, rows, _):
    """A section for each entry."""
    text, all_lines = [], lines(options, rows)
    for entry in options.entries:
        of_entry = [one for one in all_lines if one["entry"] == f"{entry['form']} {entry['key']}"]
        if not of_entry:
            continue
        chart = "a chart in the paper; " if entry.get("read_off") else ""
        text.append(f"### {entry['key']}, {entry['form']} ({entry['paper']['source']}, {entry['page']})\n\n{entry['setting']}; {entry['kind']}; {chart}"
                    f"{rates_of(options, entry)}. {entry.get('notes', '')}".rstrip() + "\n\n" +
                    launch.table(HEADINGS, map(cells, of_entry)))
    own = [f"--{name} {value}" for name, value in (("ranks", options.asked_ranks), ("tokens", options.tokens), ("set", " ".join(options.all_keys))) if value]
    return (f"Predicted and measured with {' '.join(own)}; the paper's column is of the paper's setting.\n\n" if own else "") + "\n".join(text)


def main():
    options = parse()
    results = launch.Results(options, markdown, COLUMNS, lines)
    for entry in options.entries:
        for number, case in enumerate(cases(options, entry), 1):
            stem = options.runs / f"{entry['form']}-{entry['key'].replace(':', '-')}-{number}"
            predicted = predict(options, case, stem)
            measured, good = measure(options, case, stem.with_name(stem.name + "-measured"))
            results.add([{"entry": entry["key"], "form": entry["form"], "case": case.case, "predicted": predicted, "measured": measured}], {}, good)
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
