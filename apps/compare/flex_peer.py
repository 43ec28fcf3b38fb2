"""flex_attention of PyTorch on the blocks that Annulus has selected: what local_attention.py --sparsity puts beside ours.

A dump of annulus-bench attention --sparsity (docs/formats/tensor-dump.md) has the inputs, the selection and the results. The selection becomes a
BlockMask: tiles of 128 queries and 128 keys that are selected whole, tiles that are selected in part, and a function that says for these which keys a
query has. Results are compared with those of the dump before anything is timed.
"""

import re
import statistics
import time

TILE = 128    # queries and keys of a tile of a BlockMask, PyTorch's default
COLUMN = 64   # keys of a bit of a dump
LIMIT = 2e-2  # relative error between two kernels that round P, dS and their results to 16 bits


def selected_of(file):
    """(list, query, block of keys): whether the query has the block as far as it is causal, the keys of a block, and the query heads of a list."""
    import numpy
    name = next((name for name in ("selected_query_blocks", "selected_blocks") if name in file), None)
    if name is None or "selected_columns" in file:
        raise ValueError("the dump holds no selection by blocks alone: give xattention, moba or infllm-v2")
    tokens, block = int(file.attrs["tokens"]), int(re.search(r"block=(\d+)", file.attrs["sparsity"]).group(1))
    if tokens % TILE or tokens % block or block % COLUMN or int(file.attrs["batch"]) != 1:
        raise ValueError(f"one sequence, a multiple of {TILE} and of the pattern's blocks, and blocks of a multiple of {COLUMN} keys are what a BlockMask is made of here")
    bits = numpy.unpackbits(file[name][0], axis=-1, bitorder="little")[..., :tokens // COLUMN]
    causal = numpy.arange(tokens)[:, None] // COLUMN >= numpy.arange(tokens // COLUMN)
    bits &= causal
    selected = bits.reshape(*bits.shape[:2], tokens // block, block // COLUMN).any(-1)
    if not (numpy.repeat(selected, block // COLUMN, axis=-1) & causal == bits).all():
        raise ValueError("the dump selects parts of blocks")
    return selected, block, int(file.attrs["heads"]) // len(bits)


def pairs_of(selected, block, group):
    """Pairs of a query and a key that are selected, over all query heads."""
    import numpy
    tokens = selected.shape[1]
    keys = numpy.clip(numpy.arange(tokens)[:, None] + 1 - block * numpy.arange(selected.shape[2]), 0, block)
    return group * int(sum((of_list * keys).sum() for of_list in selected))


def tiles_of(selected, block):
    """(list, tile of queries, tile of keys): which are selected in part, and which whole."""
    import numpy
    tokens = selected.shape[1]
    count = tokens // TILE
    by_tile = selected.reshape(len(selected), count, TILE, -1)
    some, every = by_tile.any(2), by_tile.all(2)
    if block > TILE:
        first = numpy.arange(count) * TILE // block
        some, every = some[..., first], every[..., first]
    else:
        some, every = some.reshape(len(some), count, count, -1).any(-1), every.reshape(len(every), count, count, -1).all(-1)
    below = numpy.arange(count)[:, None] > numpy.arange(count)
    whole = every & below
    return some & (below | numpy.eye(count, dtype=bool)) & ~whole, whole


def ordered(tiles):
    """(list, tile of queries): how many tiles of keys; and their numbers first, as BlockMask.from_kv_blocks wants them."""
    import numpy
    return tiles.sum(-1, dtype=numpy.int32), numpy.argsort(~tiles, axis=-1, kind="stable").astype(numpy.int32)


def block_mask(torch, selected, block, group, device):
    """The BlockMask of one sequence and all query heads."""
    from torch.nn.attention.flex_attention import BlockMask
    rows = torch.from_numpy(selected).to(device)
    lists = [torch.from_numpy(array).repeat_interleave(group, 0)[None].contiguous().to(device) for tiles in tiles_of(selected, block) for array in ordered(tiles)]

    def has(_, head, query, key):
        return (key <= query) & rows[head // group, query, key // block]

    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=TILE, mask_mod=has, seq_lengths=(selected.shape[1],) * 2)


def seconds_of(work, wait, repetitions):
    """The median of calls of which each is waited for, as annulus-bench attention times a pass; a first one, which may compile, is not timed."""
    work()
    wait()
    each = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        wait()
        each.append(time.perf_counter() - begin)
    return statistics.median(each)


def measure(torch, case):
    """{"forward", "backward": seconds, "errors": by tensor, "pairs"}, or {"error"}. `case` has dump, repetitions and, for a try without a GPU, device."""
    import h5py
    from torch.nn.attention.flex_attention import flex_attention
    device = case.get("device", "cuda")
    with h5py.File(case["dump"]) as file:
        try:
            selected, block, group = selected_of(file)
        except ValueError as error:
            return {"error": str(error)}
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[file.attrs["dtype"]]
        q, k, v, d_out = (torch.from_numpy(file[name][:]).to(device, dtype) for name in ("q", "k", "v", "do"))
        ours = {name: torch.from_numpy(file[name][:]) for name in ("out", "dq", "dk", "dv")}
        scale = float(file.attrs["scale"])
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    mask = block_mask(torch, selected, block, group, device)
    attention = torch.compile(flex_attention, dynamic=False) if device == "cuda" else flex_attention
    forward = lambda: attention(*inputs, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])  # noqa: E731
    out = forward()
    backward = lambda: torch.autograd.grad(out, inputs, d_out, retain_graph=True)  # noqa: E731
    theirs = dict(zip(ours, (out, *backward())))
    errors = {name: float((theirs[name].detach().float().cpu() - ours[name]).norm() / ours[name].norm()) for name in ours}
    if not all(error <= LIMIT for error in errors.values()):
        return {"error": "the results differ: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items())}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    return {"forward": seconds_of(forward, wait, case["repetitions"]), "backward": seconds_of(backward, wait, case["repetitions"]),
            "errors": errors, "pairs": pairs_of(selected, block, group)}
