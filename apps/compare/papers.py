#!/usr/bin/env python3
"""The tables and figures of BurstEngine, BurstAttention, DistFlashAttn, Striped Attention and MTraining: what each paper printed, what
is predicted, and what was measured here, in one table.

usage: papers.py --train build/cpu/bin/annulus-train --predict --table burstengine:2 striped:2 [--figure burstengine:14] [--range] [--out papers]
       papers.py --train build/cuda/bin/annulus-train --shards SHARDS --gpus 8 --table burstengine:5

The numbers of the papers and the settings of their rows lie in data/papers; a name that is not there is refused with those that are.
--table and --figure tell Table 2 of BurstEngine from its Figure 2, both burstengine:2; entries that are neither (striped:tms) go with both.

Predicted: annulus-train --plan-memory and annulus-plan, which stand beside --train, by the cluster file of the entry. Those of A100 and
A800 are guesses: --range predicts with their shares at the low end of their ranges and with all at the high one, too (annulus-topology --bound).
What cannot be predicted says why. With --predict nothing else runs: no GPU, no MPI, no data. Rows of sparse attention count a recorded selection: that of data/papers, or --selection.

Measured: runs of annulus-train as in training.py, whose tables follow those of the entry, or of annulus-bench attention as in attention.py.
A row is measured where the ranks are as many as the row has. --ranks, --tokens, --steps and --model put others in the place of the rows', and --set
goes over their keys, for prediction and measurement alike: a table for the GPUs at hand, whose paper column stays that of the paper. --nodes: as
in training.py. On several machines --mpirun names what starts ranks on all of them and --hosts how many there are (slurm/paper.sbatch does so).

Writes <out>.csv, too. --continue missing goes on with the rows that <out>.json does not have measured (with --predict: predicted), so that a
table of hours is made in commands of minutes (--budget). After --continue all measured is the median, and in brackets the range over the sessions.
"""

import argparse
import pathlib
import re
import statistics
import sys
import tomllib

import attention
import launch
import training

PAPERS = launch.ROOT / "data" / "papers"
COLUMNS = ("entry", "page", "case", "quantity", "unit", "paper", "predicted", "predicted_low", "predicted_high", "measured", "measured_low", "measured_high", "predicted_note", "measured_note")
HEADINGS = ("case", "quantity", "unit", "paper", "predicted", "measured")
BOUNDS = ("usual", "low", "high")
LENGTHS = [2**i * 65536 for i in range(9)]  # that `longest` tries
DOES_NOT_FIT = 3  # exit status of annulus-train --plan-memory
NARROW = {"q", "k", "v", "do"}  # tensors that travel in 16 bits; the others in 32
ATTENTION_PARTS = ("attention", "attention_backward", "attention_recompute")  # of a step (train.parts_every), waits included


class Refused(Exception):
    """Why a row is not predicted or measured."""


def entries(folder=PAPERS):
    """All entries of the data files, by (form, 'paper:name')."""
    found = {}
    for file in sorted(folder.glob("*.toml")):
        with open(file, "rb") as text:
            data = tomllib.load(text)
        for own in data["entry"]:
            entry, key = data.get("common", {}) | own, f"{file.stem}:{own['name']}"
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
    parser = launch.parser(__doc__, "annulus-train", "papers", sessions=True)
    parser.add_argument("--table", nargs="+", default=[], metavar="PAPER:NAME", help="without --table and --figure: everything")
    parser.add_argument("--figure", nargs="+", default=[], metavar="PAPER:NAME")
    parser.add_argument("--predict", action="store_true", help="measure nothing")
    parser.add_argument("--range", action="store_true", help="predict at both ends of guessed rates, too")
    parser.add_argument("--selection", help="recorded selection of sparse attention, as of annulus-plan --sparsity, in the place of the rows' own")
    parser.add_argument("--cluster", type=pathlib.Path, help="cluster file of all rows, in the place of their own: that of the GPUs at hand")
    parser.add_argument("--shards", help="data.shards of the runs that measure")
    parser.add_argument("--tokens", type=int, default=0, help="of the longest of an entry's rows, in the place of its own; others in proportion")
    parser.add_argument("--steps", dest="asked_steps", type=int, default=0, help="optimizer steps of each row's runs, in the place of its own; the first of several is not counted")
    parser.add_argument("--model", type=pathlib.Path, help="configuration whose model all rows have, in the place of their own")
    parser.add_argument("--rows", default="", metavar="REGEX", help="rows whose case it finds; without it all")
    training.run_options(parser)
    options = parser.parse_args()
    options.entries = chosen(parser, options)
    options.asked_ranks, options.all_keys, options.set = options.ranks, options.set, []
    options.config, options.repetitions, options.kernel = PAPERS / "models" / "llama-7b.toml", 3, "automatic"
    check(parser, options)
    if options.predict:
        launch.check_program(parser, options)
        options.made = launch.made_by(options, measuring=False)
        options.runs = options.runs or options.out.with_name(options.out.name + "-runs")
        options.runs.mkdir(parents=True, exist_ok=True)
        return options
    if not options.shards:
        parser.error("--shards: name the data of the runs that measure, or give --predict")
    training.check(parser, options)
    return options


def check(parser, options):
    """Ends the program where an option can be of no row."""
    for name in ("model", "cluster"):
        if (file := getattr(options, name)) and not file.is_file():
            parser.error(f"--{name} {file} is no file")
    for name, value in (("ranks", options.ranks), ("tokens", options.tokens), ("steps", options.asked_steps)):
        if value < 0:
            parser.error(f"--{name} {value}: give 1 or more, or 0 for those of the rows")
    if options.ranks % max(options.nodes, options.hosts, 1):
        parser.error(f"--ranks {options.ranks} cannot be dealt to {max(options.nodes, options.hosts)} nodes: give a multiple")
    try:
        pattern = re.compile(options.rows)
    except re.error as error:
        parser.error(f"--rows '{options.rows}': {error}")
    if not any(pattern.search(row["case"]) for entry in options.entries for row in entry["rows"]):
        parser.error(f"--rows '{options.rows}' finds no row of {', '.join(entry['key'] for entry in options.entries)}")


def cluster_of(options, entry):
    """The file by whose rates an entry is predicted: --cluster, unless they stand for a bound that no machine reaches."""
    own = entry["folder"] / entry["cluster"]
    return (options.cluster if options.cluster and own.parent.name != "ideal" else own).resolve()


class Divided:
    """A number in the keys of a row: {tokens}, and {tokens:/98} for a 98th of them, rounded down."""

    def __init__(self, name, number):
        self.name, self.number = name, number

    def __format__(self, part):
        if part.startswith("/") and self.number < int(part[1:]):
            raise Refused(f"the row divides its {self.name} ({self.number}) by {part[1:]}: raise --{self.name}")
        return str(self.number // int(part[1:]) if part else self.number)


def cases(options, entry):
    """The rows of an entry, each with all that it needs."""
    rows = [row for row in entry["rows"] if re.search(options.rows, row["case"])]
    longest = max((row.get("tokens", entry.get("tokens", 0)) for row in rows), default=0)
    for row in rows:
        case = argparse.Namespace(**{"notes": "", "gpu_memory": "", "peak": 0, "refused": "", "selection": "", "against": [], "ranks": 0, "tokens": 0, "steps": 3}
                                  | {name: value for name, value in (entry | row).items() if name not in ("columns", "rows", "paper")})
        case.ranks, case.steps = options.asked_ranks or case.ranks, options.asked_steps or case.steps
        case.per_node = case.ranks // max(options.nodes, options.hosts) if options.asked_ranks else min(entry.get("ranks_per_node", case.ranks), case.ranks)
        if options.tokens:
            case.tokens = case.tokens * options.tokens // longest if longest else options.tokens
        numbers = {name: Divided(name, getattr(case, name)) for name in ("tokens", "ranks")}
        try:
            case.keys, case.against = ([key.format(**numbers) for key in keys] for keys in (entry.get("keys", []) + row.get("keys", []), case.against))
        except Refused as reason:
            case.refused, case.keys = case.refused or str(reason), []
        case.keys = case.keys + options.all_keys
        case.model, case.cluster = options.model or entry["folder"] / case.model, cluster_of(options, entry)
        if options.cluster:  # the card is another one, too
            case.peak = options.peak_tflops
        yield case


def setting(case, name, default):
    """A key of a case, of attention."""
    return launch.value_of(case.keys, f"attention.{name}", default)


def report_of(options, stem, program, *arguments, **words):
    """The JSON that a program writes, which a function of launch.py runs. Raises Refused with its last words where it writes none."""
    if not launch.limit(options):
        raise Refused("not run: the budget was spent")
    report, _ = program(options, *arguments, stem=stem, **words)
    if report is None:
        raise Refused(launch.last_words(stem.with_name(stem.name + ".log")))
    return report


# --- predictors: quantities of a case by the rates of a cluster file ------------------------------------------------


def plan_memory(options, case, cluster, keys, stem):
    room = ["--gpu-memory", case.gpu_memory] if case.gpu_memory else []
    return report_of(options, stem, launch.plan_memory, case.model, case.ranks, case.per_node, cluster, case.tokens, keys, room=room, well=(0, DOES_NOT_FIT))


def step(options, case, cluster, stem):
    """An optimizer step: speed, MFU, memory."""
    found = of_step(plan_memory(options, case, cluster, case.keys, stem), case)
    if case.against:
        found |= compared(found, of_step(plan_memory(options, case, cluster, case.keys + case.against, stem.with_name(stem.name + "-against")), case))
    return found


def of_step(report, case):
    plan = report["configured"]
    parts, peaks = plan["predicted_seconds"], plan["predicted_peak_bytes"]
    computed = parts["attention"] + parts["recompute_attention"]
    lacks = {} if plan["fits"] else {"lacks": f"lacks {plan['missing_bytes'] / launch.GIB:.1f} GiB"}
    return lacks | speeds(case, report["tokens"], plan["seconds"]) | {
        "mfu": 100 * report["flops"] / plan["seconds"] / case.ranks / (case.peak or 1) / 1e12, "memory": peaks.get("device", peaks)["total"] / 1e9,
        "attention_share": 100 * (computed + parts["exposed_communication"]) / plan["seconds"],
        "communication_overhead": 100 * parts["exposed_communication"] / computed, "parts": parts, "tokens": case.tokens}


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
    model = launch.heads_of(case.model, case.keys)
    words = model | {"tokens": case.tokens, "mask": setting(case, "mask", "causal"), "schedule": setting(case, "schedule", "ring"), "layout": setting(case, "layout", "zigzag"),
                     "ranks": case.ranks, "ranks_per_node": case.per_node, "cluster": cluster}
    if case.selection:
        words["sparsity"] = options.selection or (case.selection if isinstance(case.selection, float) else case.folder / case.selection)
    return {name: report_of(options, stem.with_name(f"{stem.name}-{name}"), launch.plan, **words | {"pass": name}) for name in names}


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


def breakdown(options, case, cluster, stem):
    """Of one attention, milliseconds of a pass, and of the parts of a step of the ring: compute of a rank, and a message inside and
    between nodes."""
    found = {}
    for name, plan in passes(options, case, cluster, stem).items():
        chunk = statistics.mean(sum(sum(links.values()) for links in rank["sent"].values()) for rank in plan["totals"]) / max(case.ranks - 1, 1)
        computing = statistics.mean(rank["computing"] for rank in plan["totals"]) / case.ranks
        links = {link: plan["config"]["cluster"][link] for link in ("intra_node", "inter_node")}
        found |= {f"{name}_ms": 1e3 * plan["time"], f"{name}_chunk": 1e3 * computing}
        found |= {f"{name}_{link}": 1e3 * (of["latency"] + chunk / of["bandwidth"]) for link, of in links.items()}
    return found


PREDICTORS = {"breakdown": breakdown, "step": step, "attention": of_attention, "volume": volume, "imbalance": imbalance, "longest": longest}


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
    """Quantities by bound, or why there are none; and whether no program failed."""
    if case.refused or case.kind == "measured":
        return {"refused": case.refused or "measured only"}, True
    try:
        return {bound: PREDICTORS[case.predictor](options, case, cluster, stem.with_name(f"{stem.name}-{bound}")) for bound, cluster in bounds(options, case)}, True
    except Refused as reason:
        return {"refused": str(reason)}, False


# --- measurement: the same quantities from runs here -----------------------------------------------------------------


def measure_step(options, case, stem):
    here = launch.with_other(options, config=case.model, steps=case.steps)
    rows = []

    def run(name, keys, folder):
        row, good = training.annulus(here, case.tokens, name, keys, folder)
        if not good:
            raise Refused("failed: " + launch.last_words(folder.with_name(folder.name + ".log")))
        rows.append(row | ({"predicted_seconds": case.step_seconds} if options.cluster and case.step_seconds and not rows else {}))
        seconds = statistics.median(training.counted(row["seconds"]))
        found = speeds(case, row["tokens_per_step"], seconds) | {"memory": row["arrays"] / 1e9} | of_parts(row)
        return found | ({"mfu": 100 * statistics.median(training.counted(row["mfu"]))} if "mfu" in row else {})

    found = run(case.case, case.keys, stem)
    if case.against:
        found |= compared(found, run(f"{case.case}, with {' '.join(case.against)}", case.keys + case.against, stem.with_name(stem.name + "-against")))
    return found | {"rows": rows}


def of_parts(row):
    """What train.parts_every tells of attention. The rank that waits least computes longest: its wait is what the prediction counts."""
    if "parts" not in row:
        return {}
    spent, waited = sum(row["parts"].get(part, 0) for part in ATTENTION_PARTS), statistics.mean(training.counted(row["least_exposed"]))
    return {"attention_share": 100 * spent / sum(row["parts"].values()), "communication_overhead": 100 * waited / (spent - waited)}


def attention_report(options, case, stem, **more):
    """What annulus-bench says of the attention of a case."""
    model = launch.heads_of(case.model, case.keys)
    here = launch.with_other(options, program=options.program.with_name("annulus-bench"), tokens=[case.tokens], heads=model["heads"], head_dim=model["head_dim"],
                             schedules=[setting(case, "schedule", "ring")], layout=setting(case, "layout", "zigzag"))
    if pattern := setting(case, "sparsity", ""):
        more |= {"sparsity": pattern, "inputs": "vertical-slash"}
    more |= {"mask": setting(case, "mask", "causal"), "kv_heads": model["kv_heads"]} | ({"transport": "automatic"} if options.device == "cpu" else {})
    report, _, cases = attention.ours(here, options.nodes, stem, **more)
    for *_, error in cases:
        if error:
            raise Refused(error)
        return launch.cases_of(report)[0]
    raise Refused("failed: " + launch.last_words(stem.with_name(stem.name + ".log")))


def measure_attention(case, report):
    forward = report["forward"]
    computing = [rank["forward"]["seconds"]["median"] * (1 - rank["forward"]["exposed_communication_share"]) for rank in report["ranks"]]
    return speeds(case, case.tokens, sum(report[name]["seconds"] for name in attention.PASSES)) | {"idle": 100 * (1 - statistics.mean(computing) / forward["seconds"])}


def measure_volume(case, report):
    """Of attention in f32, whose tensors all have elements of 4 bytes, so that bytes tell elements."""
    of_tensor = case.tokens * report["config"]["heads"] * report["config"]["head_dim"]
    found = {f"{name}_volume": statistics.mean(rank[name]["sent_bytes"] for rank in report["ranks"]) / 4 / of_tensor for name in attention.PASSES}
    return found | {"volume": sum(found.values())}


def measure_imbalance(_, report):
    """Of attention to inputs whose scores have lines, as those of the recorded selection."""
    forward, selected = report["forward"], {"density": 100 * report["sparsity"]["density"]} if report.get("sparsity") else {}
    return selected | {f"{level}_imbalance": degree for level, degree in forward["imbalance_degree"].items()} | {"computation_ratio": 100 * forward["computation_ratio"]}


def measure_breakdown(case, report):
    found = {"selection": 1e3 * report["sparsity"]["selection_seconds"]}
    for name in attention.PASSES:
        computing = statistics.mean(rank[name]["seconds"]["median"] * rank[name]["computation_ratio"] for rank in report["ranks"])
        found |= {f"{name}_ms": 1e3 * report[name]["seconds"], f"{name}_chunk": 1e3 * computing / case.ranks}
    return found


def of_bench(quantities, **more):
    return lambda options, case, stem: quantities(case, attention_report(options, case, stem, **more))


MEASURED = {"step": measure_step, "attention": of_bench(measure_attention), "volume": of_bench(measure_volume, dtype="f32", warm_up=0, repetitions=1),
            "imbalance": of_bench(measure_imbalance), "breakdown": of_bench(measure_breakdown)}


def measure(options, case, stem, step_seconds=0):
    """Quantities, or why there are none; and whether no program failed. Steps that take longer than what is left of the budget, by
    `step_seconds`, the predicted time of one, are left to the next command (--continue missing), if all of its budget suffices."""
    if case.refused or case.kind == "predicted" or case.predictor not in MEASURED:
        return {"refused": "" if case.refused else "predicted only"}, True
    if case.ranks != options.ranks:
        return {"refused": f"{case.ranks} ranks, {options.ranks} here: --ranks {options.ranks} takes these"}, True
    if not launch.time_for(options, case.steps * step_seconds):
        return {"refused": f"not run: {launch.limit(options):.0f} s of the budget were left"}, False
    case.step_seconds = step_seconds
    try:
        return {"usual": MEASURED[case.predictor](options, case, stem)}, True
    except Refused as reason:
        return {"refused": str(reason)}, False


# --- the table -------------------------------------------------------------------------------------------------------


def base_of(column, row):
    """The case over which a column's numbers are stated, for those that are ratios."""
    return column.get("over") or (row.get("over") if column.get("relative") else None)


def value(column, row, found, bound="usual"):
    """The number of a column in a row, of what was found of all rows of an entry by case; None without one."""
    of = lambda case: found.get(case, {}).get(bound, {}).get(column.get("quantity"))  # noqa: E731
    own, over, minus = of(row["case"]), base_of(column, row), column.get("minus")
    if own is None or over is None:
        return own
    least, base = of(minus) if minus else 0, of(over)
    return None if base is None or least is None or base == least else (own - least) / (base - least)


def rows_of(entry, rows):
    return [row for row in rows if (row["entry"], row["form"]) == (entry["key"], entry["form"])]


def of_entry(entry, rows):
    """Rounds of the rows of an entry, by case (launch.rounds)."""
    return launch.rounds(rows_of(entry, rows), lambda row: row["case"])


def lines(options, rows):
    """A dictionary of COLUMNS for each row and quantity of the entries that have rows."""
    made = []
    for entry in options.entries:
        found = of_entry(entry, rows)
        for row in (row for row in entry["rows"] if found and row["case"] in found[0]):
            for column in entry["columns"]:
                # ratios stand where the paper has them, or where the row says to what
                if column["name"] in row or "over" in row or not ("over" in column or column.get("relative")):
                    made.append(line(entry, row, column, found))
    return made


def line(entry, row, column, found):
    predicted, *measured = ({case: one[kind] for case, one in of.items()} for kind, of in [("predicted", found[-1]), *(("measured", of) for of in found)])
    of = [value(column, row, predicted, bound) for bound in BOUNDS]
    own = predicted[row["case"]]
    note = column.get("refused") or own.get("refused") or own["usual"].get("lacks", "")
    if of[0] is None and not note:
        over = base_of(column, row)
        note = f"'{over}' has no prediction" if over else "no prediction has it"
    here = [number for number in (value(column, row, one) for one in measured) if number is not None]
    of += [statistics.median(here), min(here), max(here)] if here else [None] * 3
    numbers = zip(("predicted", "predicted_low", "predicted_high", "measured", "measured_low", "measured_high"), of, strict=True)
    return {"entry": f"{entry['form']} {entry['key']}", "page": entry["page"], "case": row["case"], "quantity": column["name"], "unit": column["unit"],
            "paper": row.get(column["name"], ""), "predicted_note": note, "measured_note": measured[-1][row["case"]].get("refused", ""),
            **{name: "" if number is None else number for name, number in numbers}}


def ranged(one, kind):
    """A number and, where the ends of its range differ in four digits, these."""
    numbers = [one[name] for name in (kind, f"{kind}_low", f"{kind}_high") if one[name] != ""]
    least, most = f"{min(numbers):.4g}", f"{max(numbers):.4g}"
    return f"{one[kind]:.4g}" + (f" ({least} to {most})" if least != most else "")


def predicted_text(one):
    if one["predicted"] == "":
        return f"refused: {one['predicted_note']}"
    return ranged(one, "predicted") + (f", {one['predicted_note']}" if one["predicted_note"] else "")


def cells(one):
    measured = one["measured_note"] if one["measured"] == "" else ranged(one, "measured")
    return [one["case"], one["quantity"], one["unit"], "–" if one["paper"] == "" else one["paper"], predicted_text(one), measured or "–"]


def tables_of_steps(options, entry, rows):
    """The tables of training.py: time by part as predicted, and all that the runs of the entry tell."""
    found = of_entry(entry, rows)
    steps = [(row["case"], found[-1][row["case"]]["predicted"].get("usual", {})) for row in entry["rows"] if found and row["case"] in found[-1]]
    timed = [{"case": case, "tokens": usual["tokens"], "parts": usual["parts"]} for case, usual in steps if "parts" in usual]
    if timed and "train.parts_every=1" in entry.get("keys", []):
        yield "Predicted seconds of a step, by part:\n\n" + training.parts_table(timed)
    runs = [run for row in rows_of(entry, rows) for run in row["measured"].get("usual", {}).get("rows", [])]
    if runs:
        yield "Measured steps:\n\n" + training.markdown(options, runs, [])


def rates_of(options, entry):
    file = cluster_of(options, entry)
    text = file.read_text()
    return f"rates of {file.name}" + (" (guessed)" if "guessed = true" in text else " (guessed where it says so)" if "GUESS" in text else "")


def markdown(options, rows, _):
    """A section for each entry."""
    text, all_lines = [], lines(options, rows)
    for entry in options.entries:
        own = [one for one in all_lines if one["entry"] == f"{entry['form']} {entry['key']}"]
        if not own:
            continue
        chart = "a chart in the paper; " if entry.get("read_off") else ""
        text.append(f"### {entry['key']}, {entry['form']} ({entry['paper']['source']}, {entry['page']})\n\n{entry['setting']}; {entry['kind']}; {chart}"
                    f"{rates_of(options, entry)}. {entry.get('notes', '')}".rstrip() + "\n\n" +
                    "\n".join([launch.table(HEADINGS, map(cells, own)), *tables_of_steps(options, entry, rows)]))
    own = [f"--{name} {value}" for name, value in (("model", options.model and options.model.name), ("ranks", options.asked_ranks), ("tokens", options.tokens), ("steps", options.asked_steps),
                                                   ("set", " ".join(options.all_keys))) if value]
    return launch.origin(rows) + (f"Predicted and measured with {' '.join(own)}; the paper's column is of the paper's setting.\n\n" if own else "") + "\n".join(text)


def main():
    options = parse()
    results = launch.Results(options, markdown, COLUMNS, lines, lambda row: "usual" in row["predicted" if options.predict else "measured"])
    for entry in options.entries:
        for number, case in enumerate(cases(options, entry), 1):
            name = {"entry": entry["key"], "form": entry["form"], "case": case.case}
            if not results.lacks(name):
                continue
            stem = options.runs / f"{entry['form']}-{entry['key'].replace(':', '-')}-{number}"
            predicted, good = predict(options, case, stem)
            measured = {"refused": ""}
            if not options.predict:
                # Sizes that are measured here may be none that can be predicted: the measurement counts.
                measured, good = measure(options, case, stem.with_name(stem.name + "-measured"), predicted.get("usual", {}).get("seconds", 0))
            results.add([name | {"predicted": predicted, "measured": measured}], {}, good)
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
