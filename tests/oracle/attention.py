#!/usr/bin/env python3
"""Errors of our attention and of PyTorch's on the same inputs, against one result in double precision.

usage: attention.py [--device cuda] [--limit 1.5] DUMP [DUMP ...]

Every DUMP is a file of `annulus-bench attention --dump` (docs/formats/tensor-dump.md), all of one problem: other
kernels, numbers of ranks, schedules and layouts. q, k, v and do are read from the first and must be the same bits in
the others. The double-precision result is computed here, head by head. PyTorch computes the same with
scaled_dot_product_attention in the dump's dtype: flash, cuDNN and what else the device has.

An error is ‖x − exact‖ / ‖exact‖ over a whole tensor. The exit status is 1 when an error of ours is more than `limit`
times the smallest of PyTorch's, or when an error grows by more than a tenth from the first dump of a kernel to another
of more ranks and beyond what one rounding of every probability brings. lse, which PyTorch does not give, must be within
1e-5.
"""

import argparse
import sys
import warnings

import h5py
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.dont_write_bytecode = True  # nothing is left in the sources

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
INPUTS = ("q", "k", "v", "do")
RESULTS = ("out", "dq", "dk", "dv")
# The error of out where every probability is rounded once: √⅓ of half a unit in the last place, over numbers whose
# logarithms are spread evenly. One rank has less, because the largest probability of a row is exactly 1 there.
ROUNDED_ONCE = {"f32": 0.0, "bf16": 0.425 * 2**-8, "f16": 0.425 * 2**-11}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


class Dump:
    """Tensors by name, (batch, heads, tokens, head_dim), and the attributes of the run."""

    def __init__(self, path, device):
        with h5py.File(path) as file:
            self.attributes = dict(file.attrs)
            self.tensors = {name: torch.from_numpy(file[name][...]).to(device) for name in (*INPUTS, *RESULTS, "lse")}
        self.path = path
        mask = self.attributes["mask"]
        if mask not in ("causal", "full"):
            sys.exit(f"{path}: mask {mask}: PyTorch's attention is compared for causal and full alone")

    def __getitem__(self, name):
        return self.tensors[name]

    def label(self):
        a = self.attributes
        kernel = a.get("kernel", "")
        return f"{kernel} {a['ranks']} ranks {a['schedule']} {a['layout']}".strip()


def exact(dump):
    """out, lse, dq, dk, dv in double precision, one kv head after the other."""
    q, k, v, d_out = (dump[name] for name in INPUTS)
    group = q.shape[1] // k.shape[1]
    result = {
        name: torch.empty(shape, dtype=torch.float64, device=q.device)
        for name, shape in (("out", q.shape), ("lse", q.shape[:3]), ("dq", q.shape), ("dk", k.shape), ("dv", k.shape))
    }
    tokens = q.shape[2]
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1) if dump.attributes["mask"] == "causal" else None
    for b in range(q.shape[0]):
        for kv in range(k.shape[1]):
            keys, values = (x[b, kv].double().requires_grad_() for x in (k, v))
            for h in range(kv * group, (kv + 1) * group):
                queries = q[b, h].double().requires_grad_()
                scores = float(dump.attributes["scale"]) * queries @ keys.T
                if hidden is not None:
                    scores = scores.masked_fill(hidden, -torch.inf)
                out = torch.softmax(scores, dim=1) @ values
                out.backward(d_out[b, h].double())
                result["out"][b, h] = out.detach()
                result["lse"][b, h] = torch.logsumexp(scores.detach(), dim=1)
                result["dq"][b, h] = queries.grad
                del scores, out
            result["dk"][b, kv], result["dv"][b, kv] = keys.grad, values.grad
    return result


def pytorch(dump, backend):
    """The same with PyTorch's attention in the dump's dtype."""
    dtype = DTYPES[dump.attributes["dtype"]]
    q, k, v = (dump[name].to(dtype).requires_grad_() for name in ("q", "k", "v"))
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(
            q, k, v, is_causal=dump.attributes["mask"] == "causal", scale=float(dump.attributes["scale"]),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), dump["do"].to(dtype))
    return {"out": out.detach(), "dq": dq, "dk": dk, "dv": dv}


def error(value, expected):
    return (torch.linalg.norm(value.double() - expected) / torch.linalg.norm(expected)).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", metavar="DUMP")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=float, default=1.5, help="largest ratio to PyTorch's error")
    options = parser.parse_args()

    dumps = [Dump(path, options.device) for path in options.dumps]
    first = dumps[0]
    for dump in dumps[1:]:
        for name in INPUTS:
            if not torch.equal(dump[name], first[name]):
                sys.exit(f"{dump.path}: '{name}' is not that of {first.path}: dump the same problem (--tokens, --seed, …)")
        if dump.attributes["dtype"] != first.attributes["dtype"] or dump.attributes["mask"] != first.attributes["mask"]:
            sys.exit(f"{dump.path}: dtype and mask must be those of {first.path}")
    warnings.simplefilter("ignore")  # a page for every kernel that is not there
    expected = exact(first)

    a = first.attributes
    print(f"{a['dtype']}, {a['tokens']} tokens, {a['heads']} heads ({a['kv_heads']} kv), head_dim {a['head_dim']}, {a['mask']}; "
          f"git {a['git_hash']}, PyTorch {torch.__version__}, "
          f"{torch.cuda.get_device_name() if options.device.startswith('cuda') else options.device}")
    print(f"{'':44}" + "".join(f"{name:>10}" for name in (*RESULTS, "lse")))
    theirs = {}
    for name, backend in BACKENDS.items():
        try:
            theirs[name] = {result: error(value, expected[result]) for result, value in pytorch(first, backend).items()}
        except RuntimeError as reason:  # no such kernel for this device or shape
            print(f"{'PyTorch ' + name:44}  not available: {str(reason).splitlines()[0]}")
            continue
        print(f"{'PyTorch ' + name:44}" + "".join(f"{theirs[name][result]:10.2e}" for result in RESULTS))
    if not theirs:
        sys.exit("PyTorch has no attention kernel for this problem")
    least = {result: min(errors[result] for errors in theirs.values()) for result in RESULTS}

    failures, few = [], {}
    for dump in dumps:
        ours = {result: error(dump[result], expected[result]) for result in (*RESULTS, "lse")}
        print(f"{dump.label():44}" + "".join(f"{ours[result]:10.2e}" for result in (*RESULTS, "lse")))
        print(f"{'  of the smallest of PyTorch':44}" + "".join(f"{ours[result] / least[result]:10.2f}" for result in RESULTS))
        for result in RESULTS:
            if not ours[result] <= options.limit * least[result]:
                failures.append(f"{dump.path}: {result} has {ours[result] / least[result]:.2f} times PyTorch's error")
        if not ours["lse"] <= 1e-5:
            failures.append(f"{dump.path}: lse has an error of {ours['lse']:.2e}")
        one = few.setdefault(dump.attributes.get("kernel"), (int(dump.attributes["ranks"]), ours))
        if int(dump.attributes["ranks"]) > one[0]:
            for result in RESULTS:
                if not ours[result] <= max(1.1 * one[1][result], ROUNDED_ONCE[first.attributes["dtype"]]):
                    failures.append(f"{dump.path}: {result} grows from {one[1][result]:.2e} to {ours[result]:.2e} with the ranks")
    for failure in failures:
        print(f"FAILED {failure}")
    if not failures:
        print(f"all errors are within {options.limit} of PyTorch's and do not grow with the ranks")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
