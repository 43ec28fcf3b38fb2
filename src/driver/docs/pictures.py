#!/usr/bin/env python3
"""Draws docs/pictures/*.svg: usage: pictures.py FOLDER. The same bytes each time; ./annulus docs compares them with those in docs."""

import itertools
import json
import math
import pathlib
import statistics
import sys
import tomllib

RANKS = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1"]  # a colour for each rank, told apart by most eyes
INK, FAINT, EMPTY, ARROW = "#1b1b1b", "#6b6b6b", "#efefef", "#b03030"


class Picture:
    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts = width, height, title, []

    def rect(self, x, y, width, height, fill, text="", stroke="#ffffff", color="#ffffff", size=11):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}" stroke-width="0.8"/>')
        if text:
            self.text(x + width / 2, y + height / 2 + size * 0.36, text, "middle", color, size)

    def cells(self, cells, width, height):
        """Cells of one size, {(x, y): fill}: a path for each fill."""
        for fill in dict.fromkeys(cells.values()):
            way = "".join(f"M{x:g} {y:g}h{width}v{height}h-{width}z" for (x, y), of_cell in cells.items() if of_cell == fill)
            self.parts.append(f'<path d="{way}" fill="{fill}" stroke="#ffffff" stroke-width="0.8"/>')

    def heat(self, x, y, width, height, rows, color):
        """Rows of shares of the full colour, None for no cell, in ten shades: a path for each shade."""
        ways = {}
        for row, shares in enumerate(rows):
            at = 0
            for level, run in itertools.groupby(None if share is None else math.ceil(10 * min(share, 1)) for share in shares):
                cells = len(list(run))
                if level is not None:
                    ways.setdefault(level, []).append(f"M{at} {row}h{cells}v1h-{cells}z")
                at += cells
        full = [int(color[i:i + 2], 16) for i in (1, 3, 5)]
        shade = lambda level: "#" + "".join(f"{round(245 + (of - 245) * level / 10):02x}" for of in full)  # noqa: E731
        paths = "".join(f'<path d="{"".join(way)}" fill="{shade(level)}"/>' for level, way in sorted(ways.items()))
        self.parts.append(f'<g transform="translate({x:g} {y:g}) scale({width / len(rows[0]):.5g} {height / len(rows):.5g})" shape-rendering="crispEdges">{paths}</g>')

    def text(self, x, y, text, anchor="start", color=INK, size=12, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}" font-size="{size}"{weight}>{text}</text>')

    def lines(self, x, y, lines, **style):
        for i, line in enumerate(lines):
            self.text(x, y + 15 * i, line, **style)

    def path(self, points, color=INK, width=1.2, arrow=False, dashed=False, fill="none"):
        ends = ' marker-end="url(#arrow)"' if arrow else ""
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        way = " ".join(f"{'M' if i == 0 else 'L'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
        self.parts.append(f'<path d="{way}" fill="{fill}" stroke="{color}" stroke-width="{width}"{dashes}{ends}/>')

    def write(self, path):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" role="img" '
                f'font-family="sans-serif" aria-label="{self.title}"><title>{self.title}</title><defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" '
                f'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{ARROW}"/></marker></defs>'
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>')
        path.write_text(head + "\n" + "\n".join(self.parts) + "\n</svg>\n")


# --- who holds a block of the sequence, of so many blocks and ranks ---------------------------------------------------------------

def contiguous(block, blocks, ranks):
    return block * ranks // blocks


def zigzag(block, blocks, ranks):
    chunk = block * 2 * ranks // blocks
    return min(chunk, 2 * ranks - 1 - chunk)


def striped(block, blocks, ranks):
    return block % ranks


def block_striped(block, blocks, ranks, stripe=2):
    return block // stripe % ranks


LAYOUTS = {"contiguous": contiguous, "zigzag": zigzag, "striped": striped, "block-striped": block_striped}


def layouts():
    blocks, ranks, cell = 16, 4, 12
    side = blocks * cell
    picture = Picture(900, 330, "Four layouts of a sequence over four ranks, and which rank computes which pair under the causal mask")
    picture.text(8, 20, "Who holds which rows, and computes which pairs of query (down) and key (across) under the causal mask", bold=True)
    for number, (name, owner) in enumerate(LAYOUTS.items()):
        left, top = 20 + number * 222, 78
        picture.text(left, 44, name, bold=True)
        pairs, cells = [0.0] * ranks, {}
        for query in range(blocks):
            rank = owner(query, blocks, ranks)
            cells[left + query * cell, 52] = RANKS[rank]
            for key in range(blocks):
                allowed = key <= query
                cells[left + key * cell, top + query * cell] = RANKS[rank] if allowed else EMPTY
                pairs[rank] += 0.0 if not allowed else 0.5 if key == query else 1.0
        picture.cells(cells, cell, cell)
        mean = sum(pairs) / ranks
        for rank in range(ranks):
            picture.rect(left + rank * 49, top + side + 12, 45, 18, RANKS[rank], f"{pairs[rank] / mean:.2f}")
        picture.text(left, top + side + 46, "pairs of ranks 0 to 3 over their mean", size=10, color=FAINT)
    return picture


def masks():
    blocks, cell = 16, 9
    documents = [0, 5, 7, 16]
    document = [max(i for i, start in enumerate(documents) if start <= block) for block in range(blocks)]
    listed = {(q, k) for q in range(blocks) for k in range(q + 1) if (q // 2 * 7 + k // 2 * 3) % 4 == 0 or q // 2 == k // 2}
    rules = {
        "full": lambda q, k: True,
        "causal": lambda q, k: k <= q,
        "window:4,0": lambda q, k: q - 4 <= k <= q,
        "dilated:3,4": lambda q, k: k <= q and (q - k) % 4 == 0 and (q - k) // 4 < 3,
        "documents:0,5,7": lambda q, k: k <= q and document[q] == document[k],
        "causal+blocks:2,FILE": lambda q, k: (q, k) in listed,
    }
    picture = Picture(1010, 196, "Which keys a query attends to under six masks")
    for number, (name, rule) in enumerate(rules.items()):
        left, top = 20 + number * 165, 34
        picture.text(left, 24, name, bold=True)
        picture.cells({(left + key * cell, top + query * cell): RANKS[0] if rule(query, key) else EMPTY
                       for query in range(blocks) for key in range(blocks)}, cell, cell)
    picture.text(20, 192, "queries down, keys across", size=10, color=FAINT)
    return picture


def parts():
    picture = Picture(900, 250, "From rows of a sequence to shards, to a plan, to kernels")
    picture.text(20, 24, "rows of the sequence", bold=True)
    picture.cells({(20 + block * 12, 34): RANKS[zigzag(block, 32, 4)] for block in range(32)}, 12, 16)
    picture.text(420, 46, "a layout says which rank has a row (position map)", color=FAINT)
    picture.text(20, 84, "shards", bold=True)
    for rank in range(4):
        picture.cells({(20 + rank * 110 + block * 12, 94): RANKS[rank] for block in range(8)}, 12, 16)
        picture.text(20 + rank * 110, 124, f"rank {rank}", size=10, color=FAINT)
    picture.text(480, 106, "a mask says which rows meet, by their positions", color=FAINT)
    picture.text(20, 156, "plan", bold=True)
    for step in range(4):
        for rank in range(4):
            picture.rect(20 + step * 110 + rank * 25, 166, 23, 16, RANKS[(rank - step) % 4], str(rank), size=9)
        picture.text(20 + step * 110, 196, f"step {step}", size=10, color=FAINT)
    picture.text(480, 178, "a schedule says who computes with whose shard, and what travels", color=FAINT)
    picture.text(20, 226, "kernels", bold=True)
    picture.text(90, 226, "one executor starts one kernel for each pair of shards, and merges what it gives by online softmax")
    return picture


def ring_step():
    left, width, step, lane = 90, 780, 195, 46
    picture = Picture(900, 266, "A ring of four ranks: each computes with one shard of keys while the next one arrives")
    picture.text(8, 20, "ring, forward: each rank computes with the keys of one shard while those of the next arrive", bold=True)
    for rank in range(4):
        top = 40 + rank * lane
        picture.text(8, top + 15, f"rank {rank}", color=RANKS[rank], bold=True)
        for number in range(4):
            owner = (rank - number) % 4
            picture.rect(left + number * step, top, step - 4, 20, RANKS[owner], f"Q{rank} × K{owner}, V{owner}")
            if number < 3:
                picture.rect(left + number * step + 8, top + 23, step - 40, 9, "#ffffff", f"K{owner}, V{owner} → rank {(rank + 1) % 4}", FAINT, INK, 8)
    base = 40 + 4 * lane + 8
    picture.path([(left, base), (left + width, base)], arrow=True, color=ARROW)
    for number in range(4):
        picture.text(left + number * step, base + 16, f"step {number}", size=10, color=FAINT)
    picture.text(left + width, base + 16, "time", "end", FAINT, 10)
    picture.text(left, base + 32, "Each step merges its (O, LSE) into those of the steps before, in fp32.", size=11)
    return picture


def two_rings():
    picture = Picture(760, 250, "Two nodes of four GPUs: rings inside of nodes, and a ring between ranks of one place")
    for node in range(2):
        left = 20 + node * 380
        picture.rect(left, 30, 330, 180, "#fafafa", stroke=FAINT)
        picture.text(left + 8, 48, f"node {node}", bold=True)
        spots = [(left + 50, 75), (left + 220, 75), (left + 220, 150), (left + 50, 150)]
        for place, (x, y) in enumerate(spots):
            picture.rect(x, y, 64, 34, RANKS[place], f"GPU {4 * node + place}")
        for (x, y), (to_x, to_y) in zip(spots, spots[1:] + spots[:1]):
            if y == to_y:
                begin, end = (x + 66, to_x - 4) if to_x > x else (x - 2, to_x + 68)
                picture.path([(begin, y + 17), (end, y + 17)], ARROW, arrow=True)
            else:
                picture.path([(x + 32, y + 36 if to_y > y else y - 2), (x + 32, to_y - 4 if to_y > y else to_y + 38)], ARROW, arrow=True)
    for place, y in enumerate((66, 66, 198, 198)):
        begin = 70 + (170 if place in (1, 2) else 0) + 32
        shift = 4 if place in (1, 2) else -4
        picture.path([(begin, y + shift), (begin + 380, y + shift)], RANKS[place], 1.4, arrow=True, dashed=True)
    picture.text(20, 20, "Solid: keys and values on the ring of a node. Dashed: to the next node, through the NIC of each GPU, a turn ahead.")
    picture.text(20, 234, "Every link works at the same time, and every rank exchanges with its neighbours and with ranks of its own place alone.", size=11)
    return picture


def training_step():
    layers, left, width, top, height = 6, 70, 800, 60, 150
    slots = 2 * layers + 3  # embedding, layers, LM head, layers backward, optimizer
    step = width / slots
    picture = Picture(900, 300, "The life of an optimizer step: what is computed and how memory rises and falls")
    picture.text(8, 20, "One optimizer step: what a rank computes, and what it holds meanwhile", bold=True)
    names = ["embed"] + [f"layer {i}" for i in range(layers)] + ["LM head"] + [f"layer {i}" for i in reversed(range(layers))] + ["update"]
    state, kept, working = 40.0, 11.0, 22.0
    levels = [state]
    curve = []
    for number, name in enumerate(names):
        x = left + number * step
        backward = layers + 1 < number < slots - 1
        fill = RANKS[3] if name == "update" else RANKS[1] if name in ("embed", "LM head") else RANKS[2] if backward else RANKS[0]
        picture.rect(x, 32, step - 2, 18, fill, name, size=9)
        before = levels[-1]
        after = before + (kept if 1 <= number <= layers else -kept if backward else 0)
        peak = max(before, after) + (0 if name in ("embed", "update") else working)
        curve += [(x, before), (x + step * 0.1, peak), (x + step * 0.85, peak), (x + step, after)]
        levels.append(after)
    most = max(level for _, level in curve)
    place = [(x, top + height - level / most * height) for x, level in curve]
    floor = top + height
    picture.path([(left, floor)] + place + [(left + width, floor)], RANKS[0], 1.2, fill="#dbe6f1")
    picture.rect(left, floor - state / most * height, width, state / most * height, "#f3dcc2", stroke="none")
    picture.text(left + 6, floor - 8, "weights, gradients, optimizer state: divided by parallel.zero")
    picture.text(left + width * 0.5, top + height * 0.58, "what layers keep for their backward pass, and the memory that one works in", "middle")
    picture.path([(left, top), (left, floor)], INK)
    picture.text(left - 8, top + 10, "bytes", "end", FAINT, 10)
    picture.lines(left, floor + 22, [
        "forward: a layer keeps what memory.recompute says; the LM head and the loss are one, chunk by chunk, and never hold all logits",
        "backward: a layer computes again what it did not keep, its gradients are summed over ranks while the next layer computes",
        "update: AdamW, on the GPU or by the host's threads (memory.offload_optimizer)"], size=11)
    return picture


MEASURED = tomllib.loads((pathlib.Path(__file__).parent / "measured.toml").read_text())
ROOT = pathlib.Path(__file__).resolve().parents[3]
PEERS = {"Annulus": RANKS[0], "cuDNN": RANKS[1], "FlashAttention-4": RANKS[2], "PyTorch": RANKS[1]}
SHARE = "of one GPU's"


def floor_plan():
    picture = Picture(900, 330, "Folders of the sources: components over one another, each uses only what lies below it")
    rooms = [("programs", "apps", ["train", "report", "eval", "bench", "tokens", "plan", "diff", "topology", "weights"], INK),
             ("training", "src/training", ["run", "parameter_sharding", "weights", "model", "optimizer", "data", "loss", "linalg", "dump", "checkpoint", "io"], RANKS[0]),
             ("prediction", "src/prediction", ["step", "emulator", "measurement", "simulator"], RANKS[1]),
             ("attention", "src/attention", ["sparsity", "executor", "comm", "kernels", "plan", "sequence"], RANKS[2]),
             ("cluster", "src/cluster", ["machine", "topology"], RANKS[3]),
             ("base", "src/base", ["kokkos", "config"], FAINT)]
    for floor, (name, folder, modules, color) in enumerate(rooms):
        y = 14 + floor * 50
        picture.rect(14, y, 872, 42, EMPTY)
        picture.text(24, y + 18, name, bold=True)
        picture.text(24, y + 34, folder, color=FAINT, size=10)
        width = 740 / len(modules)
        for i, module in enumerate(modules):
            picture.rect(136 + i * width, y + 8, width - 6, 26, color, module.replace("parameter_sharding", "sharding"), size=10)
    picture.text(14, 326, "A module may use modules to its right and below. Each component has the same folder below include/annulus and tests.", color=FAINT, size=11)
    return picture


def checkpoint():
    picture = Picture(900, 250, "A checkpoint: ranks write parts of the tensors, and any number of ranks reads them")
    picture.text(20, 24, "saved by 4 ranks", bold=True)
    picture.text(360, 24, "step-00000120/", bold=True)
    picture.text(700, 24, "read by 3 ranks", bold=True)
    for rank in range(4):
        y = 44 + rank * 36
        picture.rect(20, y, 130, 24, RANKS[rank], f"rank {rank}: its share")
        picture.path([(150, y + 12), (352, y + 12)], ARROW, arrow=True)
        picture.rect(360, y, 220, 24, RANKS[rank], f"part-0000{rank}-of-00004.safetensors", size=10)
    picture.rect(360, 188, 220, 24, INK, "manifest.json, written last", size=10)
    picture.text(360, 232, "names, pieces, checksums; without it the folder is no checkpoint", color=FAINT, size=11)
    for reader in range(3):
        y = 44 + reader * 48
        picture.rect(700, y, 150, 36, EMPTY, f"rank {reader}: a third", stroke=FAINT, color=INK)
        first, last = 4 * reader / 3, 4 * (reader + 1) / 3
        for part in range(4):
            if part < last and part + 1 > first:
                picture.path([(580, 56 + part * 36), (694, y + 18)], FAINT, dashed=True)
    picture.text(700, 206, "a rank reads the pieces", color=FAINT, size=11)
    picture.text(700, 221, "of its own share alone", color=FAINT, size=11)
    return picture


def figures(data):
    """All numbers of a table of measured.toml."""
    if isinstance(data, (dict, list)):
        for value in data.values() if isinstance(data, dict) else data:
            yield from figures(value)
    elif not isinstance(data, str):
        yield f"{data:.2f}" if isinstance(data, float) else str(data)


def measured(name):
    data = MEASURED[name]
    page = (ROOT / data["page"]).read_text()
    missing = [figure for figure in figures(data) if figure not in page]
    if missing:
        sys.exit(f"measured.toml: {data['page']} has no {', '.join(missing)}")
    return data


def legend(picture, x, y, names):
    for name in names:
        picture.rect(x, y - 10, 12, 12, PEERS[name])
        picture.text(x + 17, y, name)
        x += 42 + 7.2 * len(name)


def attention_speed():
    data, width, most = measured("attention"), 235, 800
    picture = Picture(900, 92 + 58 * len(data["cases"]), data["title"])
    picture.text(20, 22, data["title"], bold=True)
    legend(picture, 20, 44, ["Annulus", "cuDNN", "FlashAttention-4"])
    for panel, (key, title) in enumerate({"forward": "forward", "backward": "backward, fixed order (FlashAttention-4: deterministic)"}.items()):
        left = 205 + panel * 345
        picture.text(left, 68, title, bold=True)
        for number, case in enumerate(data["cases"]):
            top = 80 + number * 58
            if panel == 0:
                picture.text(195, top + 28, case["name"], "end")
            ours = case[key][0]
            for line, (name, value) in enumerate(zip(PEERS, (ours, ours / case[key][1], ours / case[key][2]))):
                picture.rect(left, top + line * 16, value / most * width, 15, PEERS[name])
                picture.text(left + value / most * width + 5, top + line * 16 + 12, f"{value:.0f}", size=11)
    return picture


def training_speed():
    data, width = measured("training"), 470
    picture = Picture(900, 62 + sum(34 + 44 * len(model["cases"]) for model in data["models"]), data["title"])
    picture.text(20, 22, data["title"], bold=True)
    legend(picture, 20, 44, ["Annulus", "PyTorch"])
    top = 62
    for model in data["models"]:
        picture.text(20, top + 16, model["name"], bold=True)
        most = max(case["annulus"] for case in model["cases"])
        for number, case in enumerate(model["cases"]):
            y = top + 28 + number * 44
            picture.text(195, y + 20, case["name"], "end")
            for line, (name, value) in enumerate((("Annulus", case["annulus"]), ("PyTorch", case["pytorch"]))):
                picture.rect(205, y + line * 17, value / most * width, 16, PEERS[name])
                more = f", {value / case['pytorch']:.2f} times" if line == 0 else ""
                picture.text(205 + value / most * width + 6, y + line * 17 + 12, f"{value}{more}", size=11)
        top += 34 + 44 * len(model["cases"])
    return picture


def table_below(page, heading):
    """The rows of the first table below a heading of a page, as column -> cell; none where the page lacks the heading."""
    parts = (ROOT / page).read_text().split(f"\n## {heading}\n")
    if len(parts) == 1:
        return []
    lines = [line for line in parts[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row)) for row in cells[2:]]


def scaling():
    data, width = MEASURED["scaling"], 400
    panels = [(panel, rows) for panel in data["panels"] if (rows := table_below(data["page"], panel["heading"]))]
    picture = Picture(900, 34 + sum(44 + 26 * len(rows) for _, rows in panels), data["title"])
    picture.text(20, 22, data["title"], bold=True)
    cards = sorted({row["card"] for _, rows in panels for row in rows})
    top = 34
    for panel, rows in panels:
        picture.text(20, top + 20, f"{panel['heading']}, {panel['unit']}", bold=True)
        rates = [float(row[panel["unit"]].split()[0]) for row in rows]
        for number, (row, rate) in enumerate(zip(rows, rates)):
            y, length = top + 32 + number * 26, rate / max(rates) * width
            picture.text(225, y + 15, f"{row['GPUs']} {row['card']}, {row['tokens']} tokens", "end")
            picture.rect(235, y, length, 20, RANKS[cards.index(row["card"])])
            share = f", {row[SHARE]} of one GPU's" if row["GPUs"] != "1" else ""
            picture.text(241 + length, y + 15, f"{rate:g}{share}", size=11)
        top += 44 + 26 * len(rows)
    return picture


AUDITED = {"density": RANKS[0], "recall": RANKS[2], "entropy": RANKS[1]}


def of_heads(audit, what):
    """Mean, and in brackets lowest and highest, of the heads of all layers."""
    values = [value for heads in audit[what] for value in heads if value is not None]
    return f"{statistics.mean(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def audits_rows(data):
    """Of each run the first audit and the last, as cells of a table."""
    return [[run["attention"] if number == 0 else "", audit["step"],
             *("all" if run["attention"] == "dense" and what != "entropy" else of_heads(audit, what) for what in ("density", "recall", "gradient_recall", "entropy"))]
            for run in data["runs"] for number, audit in enumerate(run["audits"])]


def of_largest(rows):
    """Shares of a picture as parts of three decades below the largest."""
    largest = max(share or 0 for row in rows for share in row)
    return [[1 + math.log10(share / largest) / 3 if share and share > largest / 1000 else None for share in row] for row in rows]


def draw_audits(data):
    """What audits of attention found (extension.py --audit-every): heat maps by layer and head, then where weights and gradients lie."""
    runs, wide, side, line = data["runs"], 68, 96, 138
    picture = Picture(900, 76 + line * len(runs), "Density, recall and entropy by layer and head, and where weights and gradients of attention lie")
    picture.text(20, 20, "By layer (down) and head (across), in the first audit and the last", bold=True)
    picture.text(560, 20, "One head: query down, key across", bold=True)
    sparse = [run for run in runs if run["attention"] != "dense"]
    there = {what: [value for run in of for audit in run["audits"] for heads in audit[what] for value in heads if value is not None]
             for what, of in (("density", sparse), ("entropy", runs))}
    scales = {"density": (0, max(there["density"], default=1)), "recall": (0, 1), "entropy": (min(there["entropy"]), max(there["entropy"]))}
    for column, (what, color) in enumerate(AUDITED.items()):
        picture.text(20 + 176 * column, 42, "{}, {:.3g} to {:.3g}".format(what, *scales[what]) + (" nats" if what == "entropy" else ""), color=color)
    picture.text(560, 42, "P (weights) and |dS| (gradients of scores), log scale", color=ARROW)
    for number, run in enumerate(runs):
        top = 72 + line * number
        picture.text(20, top - 7, run["attention"])
        for column, (what, color) in enumerate(AUDITED.items()):
            if run not in sparse and what != "entropy":
                continue
            for time, audit in enumerate(run["audits"]):
                left = 20 + 176 * column + (wide + 14) * time
                least, most = scales[what]
                picture.heat(left, top, wide, side, [[None if value is None else (value - least) / (most - least or 1) for value in heads] for heads in audit[what]], color)
                picture.text(left, top + side + 12, f"step {audit['step']}: {of_heads(audit, what).split()[0]}", color=FAINT, size=9)
        pattern = run["pattern"]
        for column, (what, rows, color, audit) in enumerate((("P", pattern["weights"], RANKS[1], run["audits"][1]),
                                                             *(("|dS|", rows, ARROW, audit) for rows, audit in zip(pattern["gradients"], run["audits"])))):
            left = 560 + (side + 14) * column
            picture.rect(left, top, side, side, "#fafafa")
            picture.heat(left, top, side, side, of_largest(rows), color)
            picture.text(left, top + side + 12, f"{what}, step {audit['step']}, layer {pattern['layer']}", color=FAINT, size=9)
    return picture


def sparse_audits():
    folder = ROOT / "docs/benchmarks"
    data, page = json.loads((folder / "sparse-audits.json").read_text()), folder / "sparse-training.md"
    lines = {tuple(cell.strip(" `") for cell in line.strip("|").split("|")) for line in page.read_text().splitlines()}
    if missing := [row for row in audits_rows(data) if tuple(map(str, row)) not in lines]:
        sys.exit(f"sparse-audits.json: {page} has no line {missing[0]}")
    return draw_audits(data)


PICTURES = {"layouts": layouts, "masks": masks, "parts": parts, "ring-step": ring_step, "two-rings": two_rings, "training-step": training_step,
            "floor-plan": floor_plan, "checkpoint": checkpoint,
            "attention-speed": attention_speed, "training-speed": training_speed, "scaling": scaling, "sparse-audits": sparse_audits}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        draw().write(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
