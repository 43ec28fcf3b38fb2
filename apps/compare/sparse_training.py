#!/usr/bin/env python3
"""A run with dynamic sparse attention beside the same run without: loss, density and recall over the optimizer steps.

usage: sparse_training.py DENSE SPARSE [--last 50] [--smooth 20] [--out sparse-training]

DENSE and SPARSE are run folders of annulus-train, of the same steps. Writes <out>.svg, three charts over the optimizer steps, and prints a
table in Markdown: the means of the loss over the last --last steps and their difference, the mean density of the steps that were not dense
throughout, the mean recall of the audits in the last half of the run, and the median seconds of a step. Lines of the loss are means of
--smooth steps. The exit status is 1 where the two runs do not have the same steps.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys
import xml.sax.saxutils

WIDTH, HEIGHT, LEFT, RIGHT, TOP, GAP = 760, 190, 56, 12, 26, 34
DENSE, SPARSE = "#1f6fb4", "#c8541b"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dense", type=pathlib.Path)
    parser.add_argument("sparse", type=pathlib.Path)
    parser.add_argument("--last", type=int, default=50, help="optimizer steps of the final loss")
    parser.add_argument("--smooth", type=int, default=20, help="optimizer steps of a point of the loss")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("sparse-training"))
    return parser.parse_args()


def read(folder):
    with open(folder / "metrics.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def smoothed(records, count):
    """(last step, mean loss) of each group of `count` records."""
    groups = [records[i:i + count] for i in range(0, len(records) - count + 1, count)]
    return [(group[-1]["step"], statistics.fmean(r["loss"] for r in group)) for group in groups]


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
    return (f"| optimizer steps | dense | sparse | difference | density | recall | s a step, dense and sparse |\n"
            f"|---|---|---|---|---|---|---|\n"
            f"| {steps - last + 1} to {steps} | {found['dense']:.4f} | {found['sparse']:.4f} | {100 * found['difference']:+.2f} % | "
            f"{found['density']:.3f} | {found['recall']:.3f} | {found['seconds'][0]:.2f}, {found['seconds'][1]:.2f} |\n")


def ticks(low, high):
    """Round numbers from low to high, some five."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step * 6 >= high - low)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def chart(top, title, lines, steps, low, high):
    """SVG of one chart; lines: (name, colour, points)."""
    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(value):
        return top + TOP + (HEIGHT - TOP) * (high - min(max(value, low), high)) / (high - low)

    parts = [f'<text x="{LEFT}" y="{top + 14}" font-weight="bold">{xml.sax.saxutils.escape(title)}</text>']
    for value in ticks(low, high):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#dddddd"/>'
                     f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for step in ticks(0, steps):
        parts.append(f'<text x="{x(step):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{step:g}</text>')
    at = WIDTH - RIGHT
    for name, colour, points in reversed(lines):
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="'
                     + " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points) + '"/>')
        parts.append(f'<text x="{at}" y="{top + 14}" text-anchor="end" fill="{colour}">{xml.sax.saxutils.escape(name)}</text>')
        at -= 12 + 7 * len(name)
    return "\n".join(parts)


def svg(dense, sparse, smooth):
    steps = dense[-1]["step"]
    losses = [smoothed(run, smooth) for run in (dense, sparse)]
    values = [loss for points in losses for _, loss in points]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1
    density = [(r["step"], r["attention_density"]) for r in sparse]
    recall = [(r["step"], r["attention_recall"]) for r in sparse if "attention_recall" in r]
    charts = [("Loss, nats per token", [("dense", DENSE, losses[0]), ("sparse", SPARSE, losses[1])], low - margin, high + margin),
              ("Density: share of the pairs that are computed", [("sparse", SPARSE, density)], 0, 1),
              ("Recall: share of the probability that the selected pairs hold, all rows", [("sparse", SPARSE, recall)], 0, 1)]
    height = len(charts) * (HEIGHT + GAP)
    body = "\n".join(chart(i * (HEIGHT + GAP), title, lines, steps, bottom, top) for i, (title, lines, bottom, top) in enumerate(charts))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n'
            f'</svg>\n')


def main():
    options = parse()
    dense, sparse = read(options.dense), read(options.sparse)
    if not dense or [r["step"] for r in dense] != [r["step"] for r in sparse]:
        sys.exit(f"{options.dense} and {options.sparse} do not have the same optimizer steps ({len(dense)} and {len(sparse)}): give two whole runs")
    options.out.with_suffix(".svg").write_text(svg(dense, sparse, options.smooth), encoding="utf-8")
    sys.stdout.write(table(figures(dense, sparse, min(options.last, len(dense))), len(dense), min(options.last, len(dense))))


if __name__ == "__main__":
    main()
