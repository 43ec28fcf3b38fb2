#!/usr/bin/env python3
"""Attention over packed documents of several mixes of lengths: fixed layouts beside `balanced`, and all ranks beside one.

usage: documents.py --bench build/cuda/bin/annulus-bench [--tokens 262144] [--ranks 1 2 4] [--layout zigzag striped …] [--out documents]

For each of --mix, annulus-bench times one rank alone, then both passes of every --schedule × --layout on each number of --ranks. Lengths are drawn from a fixed seed, scaled to
--tokens tokens in one sequence, and shuffled; the mask is causal inside each document.

The columns of the table, in milliseconds, forward + backward:
  one / ranks      the time of one rank over the number of ranks
  fixed            the fastest fixed layout and schedule
  balanced         the fastest schedule on the layout balanced, what it is of the fixed one's time, what one / ranks is of it, and its TFLOP/s per rank

With --predict N nothing is measured: annulus-plan, beside the program, predicts the times of --ranks on nodes of N ranks. A second table then has, of the fastest fixed layout
and of `balanced` with each schedule, the pairs of the busiest rank over the mean, the bytes of K and V that all ranks send to other nodes in the forward pass, and the milliseconds
of CPU time that a rank needs to cut the sequence and plan that pass.
With --texts FILE nothing is measured, either: FILE gets random letters as JSON lines, one document a line. Packed with the tokenizer byte and read in sequences of --tokens
tokens, each of --sequences sequences holds documents of the first --mix, drawn anew. Training on them shows what layouts cost in whole steps.
The exit status is 3 when all ran and balanced takes more than --within of the fastest fixed layout's time.
"""

import itertools
import json
import pathlib
import random
import string
import sys

import launch

LAYOUTS = ["contiguous", "zigzag", "striped", "block-striped:1024", "balanced"]


def repeated(draw, tokens):
    """Lengths that `draw` gives, until they have so many tokens."""
    lengths, filled = [], 0
    while filled < tokens:
        lengths.append(draw())
        filled += lengths[-1]
    return lengths


def with_their_sum(weights):
    return [sum(weights), *weights]


# Percent of the documents that have so many tokens, in the middle of an interval: the lengths of which MagiAttention's benchmarks with packed documents are drawn
# (github.com/SandAI-org/MagiAttention at 2c641357, exps/dist_attn/benchmark/datasets/default/doc_length_distribution.csv).
MAGI = {5: 0.22, 30: 2.91, 75: 5.2, 150: 10.23, 350: 28.19, 762: 24.64, 1536: 15.65, 3072: 7.34, 6144: 3.05, 12288: 1.29, 24576: 0.85, 49152: 0.14, 98304: 0.17,
        163840: 0.14}


def drawn_as_magi(r, tokens):
    """Pieces of documents, drawn until they fill the sequence. As there, documents are cut into pieces of a quarter of the sequence, and all pieces are shuffled."""
    quarter = max(1, tokens // 4)
    pieces = [(quarter, length // quarter * percent) for length, percent in MAGI.items()] + [(length % quarter, percent) for length, percent in MAGI.items()]
    lengths, weights = zip(*((length, weight) for length, weight in pieces if length and weight))
    drawn = repeated(lambda: r.choices(lengths, weights)[0], tokens)
    return [*drawn[:-1], drawn[-1] - (sum(drawn) - tokens)]


MIXES = {  # weights of documents, from a drawing of random numbers and the tokens of the sequence
    "log-normal": lambda r, tokens: [r.lognormvariate(0, 1.4) for _ in range(35)],
    "a half": lambda r, tokens: with_their_sum([r.lognormvariate(0, 0.8) for _ in range(22)]),
    "zipf": lambda r, tokens: [1 / rank for rank in range(1, 65)],
    "two lengths": lambda r, tokens: repeated(lambda: r.choice([max(1, tokens // 256), max(1, tokens // 8)]), tokens),
    "short": lambda r, tokens: [r.uniform(200, 1200) for _ in range(max(1, tokens // 700))],
    "tiny": lambda r, tokens: [r.uniform(64, 200) for _ in range(max(1, tokens // 131))],
    "one": lambda r, tokens: [1],
    "magi": drawn_as_magi,
}


def lengths_of(mix, tokens, drawing=""):
    """Lengths of the documents of a mix, `tokens` together; another `drawing` gives other ones."""
    generator = random.Random(f"{mix}{drawing}")
    weights = MIXES[mix](generator, tokens)
    generator.shuffle(weights)
    whole = sum(weights)
    ends = [round(end / whole * tokens) for end in itertools.accumulate(weights)]
    return [end - begin for begin, end in zip([0, *ends], ends) if end > begin]


def mask_of(lengths):
    return "causal+documents:" + ",".join(map(str, itertools.accumulate(lengths[:-1], initial=0)))


def parse():
    parser = launch.parser(__doc__, "annulus-bench", "documents")
    parser.add_argument("--mix", nargs="+", choices=MIXES, default=list(MIXES), help="of documents")
    parser.add_argument("--tokens", type=int, default=262144)
    parser.add_argument("--ranks", type=int, nargs="+", default=[0], help="each of these numbers; 0: one a GPU; with --device cpu 2")
    parser.add_argument("--gpus", type=int, default=0, help="0: all; with --device cpu none")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: ranks on the host's cores, for a try")
    parser.add_argument("--schedule", nargs="+", default=["ring", "all-gather"])
    parser.add_argument("--layout", nargs="+", default=LAYOUTS)
    parser.add_argument("--kv-heads", type=int, default=8)
    launch.attention_options(parser)
    parser.add_argument("--predict", type=int, default=0, metavar="N", help="ranks of a node: predict in the place of measuring")
    parser.add_argument("--cluster", type=pathlib.Path, help="of --predict: a cluster file; default: nodes of the H100's class")
    parser.add_argument("--texts", type=pathlib.Path, metavar="FILE", help="write texts for training in the place of measuring")
    parser.add_argument("--sequences", type=int, default=64, help="of --texts")
    parser.add_argument("--within", type=float, default=1.03, help="of the fastest fixed layout's time")
    options = parser.parse_args()
    if "balanced" not in options.layout or len(options.layout) < 2:
        parser.error("--layout: give balanced and at least one fixed layout")
    if options.texts:
        return options
    numbers = options.ranks
    if min(numbers) < 0:
        parser.error(f"--ranks {min(numbers)}: give 1 or more, or 0")
    options.ranks = 0 if 0 in numbers else max(numbers)  # as many as are dealt to GPUs
    if options.predict and 0 in numbers:
        parser.error("--predict: give --ranks")
    if options.device == "gpu" and not options.predict:
        launch.deal(parser, options)
    options.ranks = options.ranks or 2
    launch.check(parser, options)
    options.gpus = options.gpus or options.ranks
    options.made = launch.made_by(options, measuring=not options.predict)
    options.ranks = list(dict.fromkeys(number or options.ranks for number in numbers))
    return options


def write_texts(options):
    """Each document ends with a token of its own, and so has a letter less than its tokens; one without letters joins the next."""
    letters, left = random.Random(0), 0
    with open(options.texts, "w", encoding="utf-8") as file:
        for sequence in range(options.sequences):
            for length in lengths_of(options.mix[0], options.tokens, sequence):
                left += length
                if left > 1:
                    file.write(json.dumps({"text": "".join(letters.choices(string.ascii_lowercase, k=left - 1))}) + "\n")
                    left = 0


def milliseconds(case):
    return [1e3 * case[of]["seconds"] for of in ("forward", "backward")]


def bench(options, ranks, mask, schedules, layouts, stem):
    """(schedule, layout, milliseconds, TFLOP/s per rank) of each case, and whether all ended well."""
    report, good = launch.bench(
        options, [*options.mpirun, "-n", ranks], "attention", stem, mask=mask, tokens=options.tokens, heads=options.heads, kv_heads=options.kv_heads, head_dim=options.head_dim,
        dtype=options.dtype, repetitions=options.repetitions, schedule=schedules, layout=layouts)
    return [(case["config"]["schedule"], case["config"]["layout"], milliseconds(case), [case[of]["tflops_per_rank"] for of in ("forward", "backward")])
            for case in launch.cases_of(report)], good


def said_of(plan):
    return {"imbalance": plan["imbalance"]["worker"], "planning_seconds": plan["planning_seconds"],
            "inter_node_bytes": sum(sent["inter_node"] for rank in plan["totals"] for sent in rank["sent"].values())}


def predicted(options, ranks, lengths, schedules, layouts, stem):
    """As `bench`, with predicted times, and rates from these. Each case has as well what annulus-plan says of the forward pass."""
    file, all_good, cases = stem.with_suffix(".lengths"), True, []
    file.write_text("".join(f"{length}\n" for length in lengths))
    operations = 4 * options.heads * options.head_dim * sum(length * (length + 1) // 2 for length in lengths) / ranks
    for layout, schedule in itertools.product(layouts, schedules):
        plans = []
        for of in ("forward", "backward"):
            plan, good = launch.plan(
                options, stem, ranks=ranks, ranks_per_node=min(ranks, options.predict), documents=file, tokens=options.tokens, heads=options.heads, kv_heads=options.kv_heads,
                head_dim=options.head_dim, dtype=options.dtype, schedule=schedule, layout=layout, no_steps=[], **{"pass": of} | ({"cluster": options.cluster} if options.cluster else {}))
            all_good &= good
            if plan:
                plans.append(plan)
        if len(plans) == 2:
            rates = [factor * operations / plan["time"] * 1e-12 for factor, plan in zip((1, 2.5), plans)]
            cases.append((schedule, layout, [1e3 * plan["time"] for plan in plans], rates, said_of(plans[0])))
    return cases, all_good


def rows_of(options, mix):
    """What was measured or predicted of a mix on each number of ranks, and whether all programs so far ended well."""
    lengths = lengths_of(mix, options.tokens)
    stem = options.out.with_name(f"{options.out.name}-{mix.replace(' ', '-')}")
    times = (lambda ranks, *rest: predicted(options, ranks, lengths, *rest)) if options.predict else (lambda ranks, *rest: bench(options, ranks, mask_of(lengths), *rest))
    one, good = times(1, ["ring"], ["contiguous"], stem.with_name(stem.name + "-one"))
    for ranks in options.ranks:
        cases, all_good = times(ranks, options.schedule, options.layout, stem.with_name(f"{stem.name}-{ranks}"))
        yield {"mix": mix, "documents": len(lengths), "longest": max(lengths), "ranks": ranks, "cases": cases, "one": one[0][2] if one else None}, good and all_good


def fastest(row, balanced, schedule=None):
    """The case with the least time of both passes, or None; with a schedule, of its cases."""
    cases = [case for case in row["cases"] if (case[1] == "balanced") == balanced and schedule in (None, case[0])]
    return min(cases, key=lambda case: sum(case[2]), default=None)


def over_fixed(row):
    fixed, balanced = fastest(row, False), fastest(row, True)
    return sum(balanced[2]) / sum(fixed[2]) if fixed and balanced else None


def text_of(times):
    return " + ".join(f"{time:.1f}" for time in times)


def three_digits(number):
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def plans_table(options, rows):
    def cell(case):
        return f"{case[4]['imbalance']:.3f}, {three_digits(case[4]['inter_node_bytes'] * 1e-9)}, {1e3 * case[4]['planning_seconds']:.1f}" if case else "failed"
    lines = [[row["mix"], row["ranks"], f"{cell(fixed)} ({fixed[0]}, {fixed[1]})" if (fixed := fastest(row, False)) else "failed",
              *(cell(fastest(row, True, schedule)) for schedule in options.schedule)] for row in rows]
    return launch.table(["documents", "ranks", "fixed", *(f"balanced, {schedule}" for schedule in options.schedule)], lines)


def markdown(options, rows, _):
    layouts = [(schedule, layout) for schedule in options.schedule for layout in options.layout]
    lines = []
    for row in rows:
        fixed, balanced, ideal = fastest(row, False), fastest(row, True), row["one"] and [time / row["ranks"] for time in row["one"]]
        named = lambda case: f"{text_of(case[2])} ({case[0]}, {case[1]})" if case else "failed"  # noqa: E731
        lines.append([row["mix"], row["documents"], row["longest"], row["ranks"], text_of(ideal) if ideal else "failed", named(fixed), named(balanced),
                      f"{over_fixed(row):.3f}" if over_fixed(row) else "", f"{sum(ideal) / sum(balanced[2]):.3f}" if ideal and balanced else "",
                      " / ".join(f"{rate:.0f}" for rate in balanced[3]) if balanced else ""])
    text = launch.table(["documents", "number", "longest", "ranks", "one / ranks", "fixed", "balanced", "balanced / fixed", "one / ranks / balanced", "TFLOP/s per rank"], lines)
    every = [[row["mix"], row["ranks"], *(text_of(times[0]) if (times := [case[2] for case in row["cases"] if tuple(case[:2]) == of]) else "" for of in layouts)] for row in rows]
    if options.predict:
        text += "\nPairs of the busiest rank over the mean, GB between nodes, and ms of planning, of the forward pass:\n\n" + plans_table(options, rows)
    return launch.origin(rows) + text + "\nEvery case:\n\n" + launch.table(["documents", "ranks", *(f"{schedule}, {layout}" for schedule, layout in layouts)], every)


def main():
    options = parse()
    if options.texts:
        write_texts(options)
        return 0
    results = launch.Results(options, markdown)
    for mix in options.mix:
        for row, good in rows_of(options, mix):
            results.add([row], {}, good)
    return results.end(lambda rows: any((over_fixed(row) or 0) > options.within for row in rows))


if __name__ == "__main__":
    sys.exit(main())
