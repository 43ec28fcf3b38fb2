#!/usr/bin/env python3
"""The local attention kernel on one GPU beside cuDNN and FlashAttention-4, in one go and in one table.

usage: local_attention.py --bench build/cuda/bin/annulus-bench [--cases 128:16384:causal …] [--kv-heads 32 8] [--sparsity PATTERN …] [--out local]

Each case runs with `annulus-bench attention --local`, then with PyTorch's cuDNN and, where the package flash-attn-4 can be
imported, with FlashAttention-4, in turns; --rounds repeats that. A case is HEAD_DIM:TOKENS:MASK, with a mask of annulus-bench; 192/128 is a
HEAD_DIM with V of another width. All programs are timed by one method (docs/benchmarking.md): burst, a single call after a pause, and sustained, calls
behind as long a time of the same work. Without --cases: those of the table in docs/benchmarks/attention-one-gpu.md and others.

Cells of the table are TFLOP/s, burst / sustained, and ours over theirs: 2 · (head_dim + v_head_dim) operations for each unmasked pair and head forward,
6 · head_dim + 4 · v_head_dim backward. Forward: fp32 O and LSE, written (first step of a ring), or merged into running ones, or 16-bit O as of a pass with
one step. Backward: from 16-bit inputs to finished gradients with D inside (finished), or the kernel alone, which adds to running fp32 gradients (running);
in the order that gives the same bits each time, or in any. cuDNN and FlashAttention-4 do all of a backward.

With --sparsity each causal case runs with each pattern (moba, infllm-v2, xattention) and each of --sparse-kernels in the place of all that, and then as
flex_attention of PyTorch on the same blocks (flex_peer.py): annulus-bench dumps inputs, selection and results, which are compared before they are timed.
Times are those of calls that are waited for one by one; selecting is a column of its own, and no part of the ratio. The dumps need room: 3 GB at 65536 tokens,
16 heads and a head dimension of 128. They are removed.
"""

import importlib.util
import statistics
import sys

import launch
import local_peers

DOCUMENTS = "documents:0,1000,8000,28000,28300,40300,42800"
CASES = [f"{head_dim}:{tokens}:causal" for head_dim in (128, 64) for tokens in (8192, 16384, 65536) if (head_dim, tokens) != (64, 8192)]
CASES += ["128:16384:full", "128:65536:full", "128:65536:window:4096,0", "64:65536:window:4096,0", f"128:65536:{DOCUMENTS}"]
# What we time, what it is called in the table, and what the others have for it.
STEPS = {"forward_first": ("forward, first step", {"cudnn": "forward", "fa4": "forward"}),
         "forward_merging": ("forward, merging", {"cudnn": "forward", "fa4": "forward"}),
         "forward_finished": ("forward, 16-bit O", {"cudnn": "forward", "fa4": "forward"}),
         "backward_finished": ("backward, finished", {"cudnn": "backward", "fa4": "backward_deterministic"}),
         "backward_finished_any_order": ("backward, finished, any order", {"cudnn": "backward", "fa4": "backward"}),
         "backward_running": ("backward, running", {"cudnn": "backward", "fa4": "backward_deterministic"}),
         "backward_running_any_order": ("backward, running, any order", {"cudnn": "backward", "fa4": "backward"})}
PEERS = {"cudnn": "cuDNN", "fa4": "FlashAttention-4"}
RATES = ("burst", "sustained")
SPARSE_HEADINGS = ("case", "attention", "kernel", "pairs", "pass", "Annulus, ms", "flex_attention, ms", "flex : Annulus", "selection, ms", "largest error")
HEADINGS = ("case", "", "Annulus", "cuDNN", ": cuDNN", "FlashAttention-4", ": FlashAttention-4")


def case_of(text, options, kv_heads):
    """What HEAD_DIM:TOKENS:MASK says, with what is common to all cases."""
    widths, tokens, mask = text.split(":", 2)
    head_dim, _, v_head_dim = widths.partition("/")
    return {"name": text, "head_dim": int(head_dim), "v_head_dim": int(v_head_dim or head_dim), "tokens": int(tokens), "mask": mask, "heads": options.heads,
            "kv_heads": kv_heads, "batch": options.batch, "dtype": options.dtype}


def parse():
    parser = launch.parser(__doc__, "annulus-bench", "local-attention")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="HEAD_DIM:TOKENS:MASK")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, nargs="+", help="several: every case with each; as many as --heads by default")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--kernel", default="automatic")
    parser.add_argument("--steps", dest="of_ring", nargs="+", default=list(STEPS), choices=list(STEPS), metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--sparsity", nargs="+", default=[], metavar="PATTERN", help="as attention.sparsity takes it: beside flex_attention, in the place of the rest")
    parser.add_argument("--sparse-kernels", nargs="+", default=["hopper", "mma"], help="of --sparsity")
    parser.add_argument("--inputs", default="random", choices=("random", "vertical-slash"), help="of --sparsity: values of Q and K, from which blocks are selected")
    parser.add_argument("--without-pytorch", action="store_true", help="measure Annulus alone")
    parser.add_argument("--repetitions", type=int, default=5, help="single calls, each after --pause, of which burst is the median")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds")
    parser.add_argument("--sustained", type=float, default=0.2, help="seconds of calls, behind --pause seconds of the same work")
    parser.add_argument("--seconds-per-case", type=float, help="about how long the timed part of a case may take with all programs: lowers "
                        "--repetitions, down to 3")
    parser.add_argument("--rounds", type=int, default=1, help="times that the programs run in turns; medians count")
    options = parser.parse_args()
    launch.check(parser, options)
    options.kv_heads = options.kv_heads or [options.heads]
    for kv_heads in options.kv_heads:
        if kv_heads < 1 or options.heads % kv_heads:
            parser.error(f"--kv-heads {kv_heads}: give divisors of --heads {options.heads}")
    try:
        options.cases = [case_of(text, options, kv_heads) for kv_heads in options.kv_heads for text in options.cases]
    except ValueError:
        parser.error(f"--cases {' '.join(options.cases)}: give HEAD_DIM:TOKENS:MASK, as in 128:16384:causal or 192/128:16384:causal")
    if options.sparsity and (options.batch != 1 or any(case["mask"] != "causal" or case["v_head_dim"] != case["head_dim"] for case in options.cases)):
        parser.error("--sparsity: give causal --cases of one width and --batch 1")
    if options.sparsity and not options.without_pytorch and importlib.util.find_spec("h5py") is None:
        parser.error(f"--sparsity: {sys.executable} has no h5py, which reads the dumps")
    launch.visible_gpus(parser)
    options.gpus = 1
    options.made = launch.made_by(options)
    return options


def pairs_of(case):
    """Unmasked pairs of a query and a key of one head, of the masks that the others have."""
    tokens = case["tokens"]
    causal, window, documents = local_peers.mask_of(case["mask"], tokens)
    if not causal:
        return tokens * tokens
    if window is not None and window < tokens:
        return (window + 1) * tokens - window * (window + 1) // 2
    return sum(length * (length + 1) // 2 for length in documents or [tokens])


def repetitions_in(options, measurements):
    """Of single calls, so that so many measurements fit into --seconds-per-case."""
    if options.seconds_per_case is None:
        return options.repetitions
    others = options.pause + options.sustained  # of each measurement
    fitting = (options.seconds_per_case / measurements - others) / max(options.pause, 1e-3)
    return max(min(3, options.repetitions), min(options.repetitions, int(fitting)))


class Peers(launch.Program):
    """The process that times the others; it lives for all cases, since importing and compiling take longer than measuring."""

    def __init__(self, log):
        super().__init__([sys.executable, local_peers.__file__], log, asked=True)
        self.about = self.ask()
        self.programs = [name for name in PEERS if self.about and (name != "fa4" or self.about["flash_attn"])]


def words_of(case, *names):
    """Options of annulus-bench: sizes, and those that are named."""
    other_v = ["v_head_dim"] * (case["v_head_dim"] != case["head_dim"])
    return {name: case[name] for name in ("tokens", "heads", "kv_heads", "head_dim", *other_v, *names)}


def tflops(seconds, case, backward, pairs):
    q, v = case["head_dim"], case["v_head_dim"]  # a backward has three products over the columns of Q and K, and two over those of V
    return (6 * q + 4 * v if backward else 2 * (q + v)) * pairs * case["heads"] * case["batch"] / seconds * 1e-12


def ours(options, case, repetitions, number):
    """The row of annulus-bench, its JSON, and whether it ended well."""
    report, ended = launch.bench(options, [], "attention", options.out.with_name(f"{options.out.name}-case-{number}"), local=[], **words_of(case, "batch", "mask", "dtype"),
                                 kernel=options.kernel, repetitions=repetitions, pause=options.pause, sustained=options.sustained, steps=options.of_ring)
    row = {"case": case, "program": "annulus"}
    if report is None:
        return row | {"error": "failed"}, None, False
    return row | {"rates": {name: {rate: step[rate]["tflops"] for rate in RATES} for name, step in report["steps"].items()}}, report, ended


def theirs(options, peers, program, case, repetitions):
    answer = peers.ask({**case, "program": program, "repetitions": repetitions, "pause": options.pause, "sustained": options.sustained})
    row = {"case": case, "program": program}
    if answer is None or "error" in answer:
        error = "failed" if answer is None else answer["error"]
        return row | {"error": error}, answer, error == local_peers.NOT_SUPPORTED
    pairs = pairs_of(case)
    rates = {name: {"error": of["error"]} if "error" in of else {rate: tflops(of[rate], case, name != "forward", pairs) for rate in RATES}
             for name, of in answer.items()}
    return row | {"rates": rates}, answer, not any("error" in of for of in answer.values())


def sparse(options, peers, case, number):
    """The row of a selection by Annulus and of flex_attention on the same blocks, the JSON of the first, and whether both ended well."""
    stem = options.out.with_name(f"{options.out.name}-sparse-{number}")
    dump = stem.with_suffix(".h5")
    report, ended = launch.bench(options, [], "attention", stem, ranks=1, schedule="ring", layout="contiguous", cluster="none", **words_of(case, "dtype", "sparsity", "kernel"),
                                 inputs=options.inputs, repetitions=options.repetitions, dump=dump)
    answer = peers.ask({"program": "flex", "dump": str(dump), "repetitions": options.repetitions}) if ended and peers else None
    dump.unlink(missing_ok=True)
    row = {"case": case, "program": "sparse", "sparsity": report and report["sparsity"], "flex": answer,
           "seconds": report and {name: report[name]["seconds"] for name in ("forward", "backward")}}
    good = bool(ended and (peers is None or answer and "error" not in answer))
    if good and peers and answer["pairs"] != row["sparsity"]["pairs"]:
        answer["error"], good = f"{answer['pairs']} pairs, not {row['sparsity']['pairs']}", False
    return row, report, good


def sparse_lines(row):
    """Of the table, one for each pass."""
    case, flex = row["case"], row["flex"] or {}
    name = [f"d {case['head_dim']}, {case['tokens']}, {case['heads']} / {case['kv_heads']} heads", case["sparsity"], case["kernel"]]
    if row["sparsity"] is None:
        return [[*name, "", "", "failed"]]
    select = row["sparsity"]["selection_seconds"]
    errors = [flex["errors"][name] for name in flex.get("errors", [])]
    lines = []
    for pass_name, parts in (("forward", errors[:1]), ("backward", errors[1:])):
        ours = row["seconds"][pass_name] - (select if pass_name == "forward" else 0)
        theirs = [f"{1e3 * flex[pass_name]:.2f}", f"{flex[pass_name] / ours:.2f}"] if "error" not in flex and flex else [flex.get("error", ""), ""]
        lines.append([*name, f"{100 * row['sparsity']['density']:.1f} %", pass_name, f"{1e3 * ours:.2f}", *theirs, f"{1e3 * select:.2f}" if pass_name == "forward" else "",
                      f"{max(parts):.1e}" if parts else ""])
    return lines


def joined(rows, case, program, name):
    """What all rounds gave of a pass: medians by rate, or the error as text; None where it was not measured."""
    of_case = [row for row in rows if row["case"] == case and row["program"] == program]
    each = [row["rates"][name] for row in of_case if name in row.get("rates", {})]
    good = [rates for rates in each if "error" not in rates]
    if good:
        return {rate: statistics.median(rates[rate] for rates in good) for rate in RATES}
    errors = [rates["error"] for rates in each] + [row["error"] for row in of_case if "error" in row]
    return errors[0] if errors else None


def cells(rows, case, step):
    """Of a line of the table behind its case."""
    label, counterparts = STEPS[step]
    mine = joined(rows, case, "annulus", step)
    text = lambda rates, digits: "" if rates is None else rates if isinstance(rates, str) else " / ".join(f"{rates[rate]:.{digits}f}" for rate in RATES)  # noqa: E731
    line = [label, text(mine, 0)]
    for program, name in counterparts.items():
        other = joined(rows, case, program, name)
        both = isinstance(mine, dict) and isinstance(other, dict)
        line += [text(other, 0), text({rate: mine[rate] / other[rate] for rate in RATES}, 2) if both else ""]
    return line


def sparse_markdown(options, rows, _, about):
    text = f"{options.dtype}, causal, {options.inputs} inputs, medians of {options.repetitions} calls; PyTorch {about.get('torch', '?')}\n\n"
    return text + launch.table(SPARSE_HEADINGS, [line for row in rows for line in sparse_lines(row)])


def dense_markdown(options, rows, mine, about):
    versions = f"; PyTorch {about['torch']}, cuDNN {about['cudnn']}, FlashAttention-4 {about['flash_attn'] or 'not there'}" if about else ""
    text = (f"{options.dtype}, {options.heads} heads, batch {options.batch}; TFLOP/s burst / sustained (pause {options.pause:g} s, sustained {options.sustained:g} s), "
            f"{options.rounds} round{'s' if options.rounds > 1 else ''}; kernel {mine.get('attention_kernel', '?')}{versions}\n\n")
    lines = []
    for case in options.cases:
        heads = "" if case["kv_heads"] == case["heads"] else f", {case['kv_heads']} kv heads"
        mask = "documents" if case["mask"].startswith("documents") else case["mask"]
        lines += [[f"d {case['name'].partition(':')[0]}, {case['tokens']}, {mask}{heads}", *cells(rows, case, step)] for step in options.of_ring
                  if joined(rows, case, "annulus", step) is not None]
    return text + launch.table(HEADINGS, lines)


def markdown(options, rows, reports):
    text = (sparse_markdown if options.sparsity else dense_markdown)(options, rows, launch.first_of(reports, "annulus"), launch.first_of(reports, "peers"))
    left = [" ".join([case["name"], *(case[key] for key in ("sparsity", "kernel") if key in case)]) for case in options.cases if case not in [row["case"] for row in rows]]
    return launch.origin(rows) + text + (f"\nnot measured: {', '.join(left)}\n" if left else "")


def main():
    options = parse()
    results = launch.Results(options, markdown)
    peers = None if options.without_pytorch else Peers(options.out.with_name(f"{options.out.name}-peers.log"))
    results.add([], ("peers", peers and peers.about), peers is None or peers.about is not None)
    if options.sparsity:
        options.cases = [case | {"sparsity": pattern, "kernel": kernel} for case in options.cases for pattern in options.sparsity for kernel in options.sparse_kernels]
    programs = peers.programs if peers else []
    modes = {"cudnn": 2, "fa4": 3}  # measurements: forward, backward and its deterministic mode
    repetitions = repetitions_in(options, options.rounds * (len(options.of_ring) + sum(modes[name] for name in programs)))
    for number, case in enumerate(options.cases):
        if not launch.limit(options):  # the table names what is left out
            break
        if options.sparsity:
            row, report, ended = sparse(options, peers, case, number)
            results.add([row], ("annulus", report), ended)
            continue
        for _ in range(options.rounds):
            row, report, ended = ours(options, case, repetitions, number)
            results.add([row], ("annulus", report), ended)
            for program in programs:
                row, report, ended = theirs(options, peers, program, case, repetitions)
                results.add([row], (program, report), ended)
    if peers is not None:
        peers.end()
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
