#!/usr/bin/env python3
"""A run with dynamic sparse attention beside the same run without: loss, density and recall.

usage: sparse_training.py DENSE SPARSE [--last 50]

DENSE and SPARSE are run folders of annulus-train, of the same steps. Prints a table in Markdown: the means of the loss over the last --last
steps and their difference, the mean density of the steps that were not dense throughout, the mean recall of the audits in the last half of
the run, and the median seconds of a step. annulus-report DENSE SPARSE --html PAGE draws them. The exit status is 1 where the two runs do not
have the same steps.
"""

import math
import pathlib
import statistics
import sys

import launch
import training


def parse():
    parser = launch.described(__doc__)
    parser.add_argument("dense", type=pathlib.Path)
    parser.add_argument("sparse", type=pathlib.Path)
    parser.add_argument("--last", type=int, default=50, help="optimizer steps of the final loss")
    return parser.parse_args()


def figures(dense, sparse, last):
    """What the table says."""
    selected = [r["attention_density"] for r in sparse if "attention_imbalance" in r]
    recalls = [(r["step"], r["attention_recall"]) for r in sparse if "attention_recall" in r]
    late = [recall for step, recall in recalls if step > sparse[-1]["step"] / 2]
    losses = [statistics.fmean(r["loss"] for r in run[-last:]) for run in (dense, sparse)]
    return {"dense": losses[0],
            "sparse": losses[1],
            "difference": losses[1] / losses[0] - 1,
            "density": statistics.fmean(selected) if selected else math.nan,
            "recall": statistics.fmean(late) if late else math.nan,
            "seconds": [statistics.median(r["step_seconds"] for r in run if "attention_imbalance" in r or run is dense) for run in (dense, sparse)]}


def table(found, steps, last):
    return launch.table(("optimizer steps", "dense", "sparse", "difference", "density", "recall", "s a step, dense and sparse"),
                        [[f"{steps - last + 1} to {steps}", f"{found['dense']:.4f}", f"{found['sparse']:.4f}", f"{100 * found['difference']:+.2f} %",
                          f"{found['density']:.3f}", f"{found['recall']:.3f}", f"{found['seconds'][0]:.2f}, {found['seconds'][1]:.2f}"]])


def main():
    options = parse()
    dense, sparse = (training.records(folder / "metrics.jsonl") for folder in (options.dense, options.sparse))
    if not dense or [r["step"] for r in dense] != [r["step"] for r in sparse]:
        sys.exit(f"{options.dense} and {options.sparse} do not have the same optimizer steps ({len(dense)} and {len(sparse)}): give two whole runs")
    sys.stdout.write(table(figures(dense, sparse, min(options.last, len(dense))), len(dense), min(options.last, len(dense))))


if __name__ == "__main__":
    main()
