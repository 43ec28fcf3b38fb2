"""What extension.py says of models that trained with several attentions: tables of all seeds and of each one, and a picture.

`rows` is {seed: rows of matrix.py}; a row that is missing, since its run failed or is still to come, is left out. Shares have 95 % intervals of
the samples that were asked; how much seeds differ is seen in the lines of each one.
"""

import json
import math
import statistics
import sys

import launch
import matrix
import training
from matrix import asked, of_attention

sys.path.append(str(launch.ROOT / "src/driver/docs"))
import pictures  # noqa: E402

GOAL = 0.98  # of what the dense model answers
COLORS = [pictures.INK, *pictures.RANKS, pictures.ARROW, pictures.FAINT]


def distinct(rows, what):
    """Values of samples, ascending."""
    return sorted({sample[what] for of in rows.values() for row in of for one in row["retrieval"].values() for sample in one["samples"]})


def of_dense(rows, attention):
    """What a model answers over what the dense model does, and the 95 % interval of this ratio. The same samples were asked, so that only those count as
    chance which one of the two answers: the variance of the logarithm is (b + c) / ((a + b) (a + c)), with a answered by both, b and c by one (Lachenbruch and
    Lynch 1998), and with 1/2 added to b + c, since no difference among some samples does not prove that there is none. None where one answers nothing."""
    dense, sparse = asked(rows, "dense", "dense"), asked(rows, attention, attention)
    both = dense.keys() & sparse.keys()
    right = [(dense[key]["correct"], sparse[key]["correct"]) for key in both]
    ours, theirs = sum(mine for _, mine in right), sum(other for other, _ in right)
    if not ours or not theirs:
        return None
    width = 1.96 * math.sqrt((sum(mine != other for other, mine in right) + 0.5) / (ours * theirs))
    ratio = ours / theirs
    return ratio, ratio * math.exp(-width), ratio * math.exp(width)


def verdict(ratio):
    _, low, high = ratio
    return "reached" if low >= GOAL else "missed" if high < GOAL else "not told by so few samples"


def compared(ratio):
    return "" if ratio is None else f"{ratio[0]:.3f} ({ratio[1]:.3f}–{ratio[2]:.3f})"


def own_line(rows, attention, lengths, seed):
    """Of the models that are evaluated as they were trained."""
    own = list(of_attention(rows, attention).values())
    samples = list(asked(rows, attention, attention).values())
    figures = [matrix.run_figures(row) for row in own]
    ratio = None if attention == "dense" else of_dense(rows, attention)
    return [attention, seed, matrix.pairs(attention, [density for _, density, _ in figures]), f"{statistics.median(seconds for *_, seconds in figures):.3f}",
            f"{statistics.mean(row['perplexity'][attention]['loss'] for row in own):.4f}",
            *(launch.share([sample for sample in samples if sample["tokens"] == length]) for length in lengths), launch.share(samples), compared(ratio)]


def markdown(attentions, rows):
    lengths, depths = distinct(rows, "tokens"), distinct(rows, "depth")
    there = [attention for attention in attentions if of_attention(rows, attention)]
    lines = []
    for attention in there:
        seeds = of_attention(rows, attention)
        lines.append(own_line(rows, attention, lengths, "all"))
        lines += [own_line({seed: rows[seed]}, attention, lengths, seed) for seed in seeds] if len(seeds) > 1 else []
    programs = sorted({row["follows from"]["program"] for of in rows.values() for row in of})
    text = f"{', '.join(programs)}; seeds {', '.join(map(str, rows))}; {len(asked(rows, there[0], there[0]))} samples.\n\n"
    if missing := [f"{attention} of seed {seed}" for attention in attentions for seed in rows if seed not in of_attention(rows, attention)]:
        text += f"Missing: {'; '.join(missing)}.\n\n"
    text += "Models evaluated as they were trained; share of samples answered (95 % interval), by length:\n\n" + launch.table(
        ["attention", "seed", "pairs", "s a step", "loss", *map(str, lengths), "all", "of dense"], lines)
    for attention in there:
        if attention != "dense" and "dense" in there and (ratio := of_dense(rows, attention)):
            text += f"\n{GOAL:.0%} of dense with {attention}: {verdict(ratio)}, {compared(ratio)}\n"
    text += "\nThe same by depth (0: at the beginning of the text):\n\n" + launch.table(
        ["attention", *(f"{depth:g}" for depth in depths)],
        [[attention, *(launch.share([sample for sample in asked(rows, attention, attention).values() if sample["depth"] == depth]) for depth in depths)] for attention in there])
    return text + "\n" + matrix.each_with_each(rows, attentions)


class Panel:
    """Axes in a picture. `ticks`: (value, text) along x."""

    width, height = 340, 200

    def __init__(self, picture, left, top, title, x_name, ticks, low, high):
        self.picture, self.left, self.top, self.low, self.high = picture, left, top, low, high
        self.first, self.last = ticks[0][0], ticks[-1][0]
        picture.text(left, top - 12, title, bold=True)
        for number in range(5):
            value = low + (high - low) * number / 4
            y = self.y(value)
            picture.path([(left, y), (left + self.width, y)], pictures.EMPTY, 1)
            picture.text(left - 6, y + 4, f"{value:.2f}", "end", pictures.FAINT, 10)
        for value, name in ticks:
            picture.text(self.x(value), top + self.height + 16, name, "middle", pictures.FAINT, 10)
        picture.text(left + self.width, top + self.height + 32, x_name, "end", pictures.FAINT, 10)

    def x(self, value):
        return self.left + 8 + (value - self.first) / ((self.last - self.first) or 1) * (self.width - 16)

    def y(self, value):
        return self.top + self.height * (1 - (value - self.low) / ((self.high - self.low) or 1))

    def line(self, points, color, shift=0):
        self.picture.path([(self.x(x) + shift, self.y(y)) for x, y in points], color, 1.8)

    def bars(self, points, color, shift):
        """Points (x, y, from, to), joined, each with its interval."""
        self.line([(x, y) for x, y, *_ in points], color, shift)
        for x, _, low, high in points:
            self.picture.path([(self.x(x) + shift, self.y(low)), (self.x(x) + shift, self.y(high))], color, 1)


def smoothed(values):
    """Means over a fifteenth of the steps around each."""
    half = len(values) // 30
    return [statistics.mean(values[max(0, i - half):i + half + 1]) for i in range(len(values))]


def loss_over_steps(rows, attention):
    """(step, mean of the seeds)"""
    runs = [row["run"] for row in of_attention(rows, attention).values()]
    return list(zip([step["step"] for step in runs[0]], smoothed([statistics.mean(step["loss"] for step in steps) for steps in zip(*runs)])))


def loss_by_position(rows, attention):
    """(binary logarithm of the tokens before, up to; mean of the seeds), from 128 on: before that sparse attention leaves nothing out."""
    evaluations = [row["perplexity"][attention]["by_position"] for row in of_attention(rows, attention).values()]
    return [(math.log2(buckets[0]["up_to"]), statistics.mean(bucket["loss"] for bucket in buckets)) for buckets in zip(*evaluations) if buckets[0]["up_to"] >= 128]


def answered_by(rows, attention, what, values):
    """(number of the value, share, its interval)"""
    samples = asked(rows, attention, attention).values()
    return [(number, *launch.with_interval([sample for sample in samples if sample[what] == value])) for number, value in enumerate(values)]


def draw(attentions, rows):
    """Loss over optimizer steps and by position, samples answered by length and by depth, of models evaluated as they were trained."""
    there = [attention for attention in attentions if of_attention(rows, attention)]
    title = "Loss over steps and by position, and share of samples answered, of models that trained with several attentions"
    picture = pictures.Picture(900, 70 + 18 * len(there) + 2 * 270, title)
    for number, attention in enumerate(there):
        picture.rect(20, 12 + 18 * number, 14, 10, COLORS[number % len(COLORS)])
        picture.text(40, 21 + 18 * number, attention)
    top = 60 + 18 * len(there)
    for column, (name, of, x_name) in enumerate((("loss over steps, smoothed (nats per token)", loss_over_steps, "optimizer steps"),
                                                 ("loss by position (nats per token)", loss_by_position, "tokens before, up to"))):
        lines = [of(rows, attention) for attention in there]
        values = sorted({x for line in lines for x, _ in line})
        steps = [values[round(part * (len(values) - 1) / 4)] for part in range(5)]
        ticks = [(x, f"{2 ** x:.0f}") for x in values] if of is loss_by_position else [(x, f"{x:g}") for x in dict.fromkeys(steps)]
        losses = [y for line in lines for _, y in line]
        panel = Panel(picture, 60 + 430 * column, top, name, x_name, ticks, min(losses), max(losses))
        for number, line in enumerate(lines):
            panel.line(line, COLORS[number % len(COLORS)])
    for column, (what, x_name) in enumerate((("tokens", "tokens of the sample"), ("depth", "depth, 0: at the beginning"))):
        values = distinct(rows, what)
        panel = Panel(picture, 60 + 430 * column, top + 270, "samples answered, 95 % intervals", x_name, [(i, f"{value:g}") for i, value in enumerate(values)], 0, 1)
        for number, attention in enumerate(there):
            panel.bars(answered_by(rows, attention, what, values), COLORS[number % len(COLORS)], 4 * (number - len(there) / 2))
    return picture


def rounded(values, digits):
    """Numbers of nested lists, with so many digits."""
    return [rounded(value, digits) for value in values] if isinstance(values, list) else values if values is None else float(f"{values:.{digits}g}")


def audits(attention, folder):
    """Of a run: the first audit and the last, and where weights and gradients of its middle layer lie."""
    found = training.records(folder / "attention.jsonl")
    ends = found[0], found[-1]
    middle = [audit["layers"][len(audit["layers"]) // 2] for audit in ends]
    patterns = [layer["pattern"] for layer in middle]
    return {"attention": attention,
            "audits": [{"step": audit["step"], **{what: [rounded(layer[what], 3) for layer in audit["layers"]] for what in ("density", "recall", "gradient_recall", "entropy")}}
                       for audit in ends],
            "pattern": {"layer": middle[0]["layer"], "head": patterns[0]["head"], "block": patterns[0]["block"], "weights": rounded(patterns[-1]["weights"], 2),
                        "gradients": [rounded(of["gradients"], 2) for of in patterns]}}


def audits_table(found):
    return f"{found['program']}. Mean of the heads of all layers (lowest to highest):\n\n" + launch.table(
        ["attention", "step", "density", "recall", "gradient recall", "entropy, nats"], pictures.audits_rows(found))


def in_lines(found):
    """JSON with a line for each run."""
    runs = ",\n".join(json.dumps(run, separators=(",", ":")) for run in found["runs"])
    return f'{{"program": {json.dumps(found["program"])}, "runs": [\n{runs}\n]}}\n'
