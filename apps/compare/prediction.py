#!/usr/bin/env python3
"""What annulus-bench attention takes beside what the simulator predicts from links and kernels measured before, in one go.

usage: prediction.py --bench build/cuda/bin/annulus-bench --ranks N [--nodes 1 2] [--dtype bf16] [--out prediction]

For 1 node of N ranks, and for each other number of --nodes that this machine is to stand for: `annulus-bench links`
measures links and the local kernel and writes a cluster file; `annulus-bench attention --cluster` takes that file,
predicts every case and measures it. Nothing of the measured passes goes into their prediction. Ranks are MPI's; on GPUs
there are as many as GPUs, and messages go over NCCL. The cluster files are <out>-N-nodes.toml. The exit status is 3 when all
ran and measured / predicted is further from 1 than --within in one case, or than --mean on average.
"""

import statistics
import sys

import launch

PASSES = ("forward", "backward")
HEADINGS = ("nodes × ranks", "tokens", "", "forward ms", "predicted", "ratio", "backward ms", "predicted", "ratio")


def parse():
    parser = launch.parser(__doc__, "annulus-bench", "prediction")
    parser.add_argument("--ranks", type=int, required=True, help="2 or more; on GPUs at most as many as these")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1], help="machines that this one stands for, one after the other")
    parser.add_argument("--tokens", type=int, nargs="+", default=[131072], help="of the whole sequence")
    parser.add_argument("--schedules", nargs="+", default=["ring", "burst", "topology-burst"])
    launch.attention_options(parser, layout="zigzag")
    parser.add_argument("--within", type=float, default=0.10, help="by which measured / predicted may differ from 1")
    parser.add_argument("--mean", type=float, default=0.05, help="by which it may differ on average")
    options = parser.parse_args()
    launch.check(parser, options)
    launch.check_nodes(parser, options, options.nodes)
    options.gpus = options.ranks
    options.made = launch.made_by(options)
    if not 2 <= options.ranks <= min(options.tokens):
        parser.error(f"--ranks {options.ranks}: links are between ranks, and each rank has tokens: give 2 to {min(options.tokens)}")
    return options


def measure(options, nodes):
    """The report of annulus-bench attention on that many nodes, None without one, and whether all ended well."""
    name = f"{options.out.name}-{nodes}-nodes"
    stem, cluster = options.out.with_name(name), options.out.with_name(name + ".toml")
    ranks = launch.on_ranks(options, nodes)
    shape = {"heads": options.heads, "kv_heads": options.heads, "head_dim": options.head_dim, "dtype": options.dtype}
    if not launch.links(options, nodes, options.tokens, shape, cluster, options.out.with_name(name + ".links")):
        return None, False
    return launch.bench(options, ranks, "attention", stem, **shape, ranks_per_node=options.ranks // nodes, schedule=options.schedules, layout=options.layout, mask="causal", tokens=options.tokens,
                        repetitions=options.repetitions, cluster=cluster)


def rows_of(options, nodes, report):
    return [{"nodes": nodes, "ranks": options.ranks, "tokens": case["config"]["tokens"], "case": f"{case['config']['schedule']}, {case['config']['layout']}"}
            | {name: {"seconds": case[name]["seconds"], "predicted": case[name]["predicted"]["seconds"],
                      "ratio": case[name]["predicted"]["measured_over_predicted"]} for name in PASSES}
            for case in launch.cases_of(report)]


def errors_of(rows):
    return [abs(row[name]["ratio"] - 1) for row in rows for name in PASSES]


def markdown(options, rows, reports):
    first = next((launch.cases_of(report)[0] for report in reports if report), {})
    where = first.get("topology", {})
    text = (f"{options.ranks} ranks, causal, {options.dtype}, {options.heads} heads, head_dim {options.head_dim}, batch 1; "
            f"{where.get('execution_space', '?')}, kernel {where.get('attention_kernel', '?')}, {where.get('communicator', '?')}\n\n")
    text += launch.table(HEADINGS, [[f"{row['nodes']} × {row['ranks'] // row['nodes']}", row["tokens"], row["case"],
                                     *(cell for name in PASSES for cell in (f"{1e3 * row[name]['seconds']:.2f}", f"{1e3 * row[name]['predicted']:.2f}",
                                                                            f"{row[name]['ratio']:.3f}"))] for row in rows])
    if errors := errors_of(rows):
        ratios = [row[name]["ratio"] for row in rows for name in PASSES]
        text += (f"\nmeasured / predicted is {min(ratios):.3f} to {max(ratios):.3f}; {sum(error <= options.within for error in errors)} of {len(ratios)} are within "
                 f"{options.within:.0%}, and the mean error is {statistics.mean(errors):.1%} (goal: {options.mean:.0%})\n")
    return launch.origin(rows) + text


def main():
    options = parse()
    results = launch.Results(options, markdown)
    for nodes in options.nodes:
        report, ended = measure(options, nodes)
        results.add(rows_of(options, nodes, report), report, ended)
    return results.end(lambda rows: max(errors_of(rows), default=0) > options.within or statistics.mean(errors_of(rows) or [0]) > options.mean)


if __name__ == "__main__":
    sys.exit(main())
