#!/usr/bin/env python3
"""Attention of PyTorch's cuDNN and of FlashAttention-4 on one GPU, timed case by case: what local_attention.py puts beside ours.

Reads cases from standard input, a JSON object a line, and answers each on standard output with a line of JSON. The first
line says what is there: {"gpu", "torch", "cudnn", "flash_attn"}. A case has tokens, heads, kv_heads, head_dim, v_head_dim, batch, mask, dtype (bf16
or f16), program (cudnn, fa4, or flex: flex_peer.measure says what that has), repetitions, pause and sustained (`rates`); the answer has, by the names "forward",
"backward" and, where the program has a mode for it, "backward_deterministic", what `rates` returns or {"error"}; where the program does not have the mask, the answer is {"error"} alone.

The forward writes O and LSE as in training; the backward is one call of autograd on a kept graph: everything from O, dO, Q, K and
V to finished dQ, dK and dV in 16 bits.
"""

import contextlib
import importlib.metadata
import json
import math
import statistics
import sys
import time

import flex_peer

NOT_SUPPORTED = "not supported"


def mask_of(text, tokens):
    """causal, the left end of a window (or None), and the lengths of packed documents (or None); ValueError where `text` is more."""
    if text in ("full", "causal"):
        return text == "causal", None, None
    kind, _, numbers = text.partition(":")
    values = [int(number) for number in numbers.split(",")] if "+" not in text and numbers.replace(",", "").isdigit() else []
    if kind == "window" and len(values) == 2 and values[1] == 0:
        return True, values[0], None
    if kind == "documents" and values:
        starts = [start for start in values if start < tokens] + [tokens]
        return True, None, [end - start for start, end in zip(starts, starts[1:])]
    raise ValueError(NOT_SUPPORTED)


class Cudnn:
    """(batch, heads, tokens, head_dim)"""

    modes = {"backward": {}}

    def __init__(self, torch, case):
        self.torch, self.case = torch, case
        self.causal, window, documents = mask_of(case["mask"], case["tokens"])
        if window is not None or documents is not None:
            raise ValueError(NOT_SUPPORTED)

    def shape(self, heads, width):
        return self.case["batch"], heads, self.case["tokens"], width

    def forward(self, q, k, v):
        attention = self.torch.nn.attention
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal,
                                                                         enable_gqa=self.case["heads"] != self.case["kv_heads"])


class FlashAttention4:
    """(batch, tokens, heads, head_dim); packed documents without a batch"""

    modes = {"backward": {"deterministic": False}, "backward_deterministic": {"deterministic": True}}

    def __init__(self, torch, case):
        self.causal, window, self.documents = mask_of(case["mask"], case["tokens"])
        self.window = (None, None) if window is None else (window, 0)
        self.case = case
        if self.documents is None:
            return
        if case["batch"] != 1:
            raise ValueError(NOT_SUPPORTED)
        ends = [sum(self.documents[:count]) for count in range(len(self.documents) + 1)]
        self.ends = torch.tensor(ends, dtype=torch.int32, device="cuda")

    def shape(self, heads, width):
        rows = (self.case["batch"], self.case["tokens"]) if self.documents is None else (self.case["tokens"],)
        return *rows, heads, width

    def forward(self, q, k, v, deterministic=False):
        from flash_attn import cute
        options = {"causal": self.causal, "window_size": self.window, "deterministic": deterministic}
        if self.documents is None:
            result = cute.flash_attn_func(q, k, v, **options)
        else:
            most = max(self.documents)
            result = cute.flash_attn_varlen_func(q, k, v, cu_seqlens_q=self.ends, cu_seqlens_k=self.ends, max_seqlen_q=most,
                                                 max_seqlen_k=most, **options)
        return result[0] if isinstance(result, tuple) else result


PROGRAMS = {"cudnn": Cudnn, "fa4": FlashAttention4}


class Clock:
    """The stream of PyTorch's current GPU. Times are those between two events of it."""

    def __init__(self, torch):
        self.torch = torch

    def hold(self):
        """What is enqueued next starts some milliseconds later, so that the host is ahead of the GPU."""
        self.torch.cuda._sleep(4_000_000)  # cycles, of which a Hopper GPU does some 1.5 to 2 a nanosecond

    def seconds(self, work, calls):
        """Of all `calls` together."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)

    def wait(self):
        self.torch.cuda.synchronize()

    sleep = staticmethod(time.sleep)


def rates(clock, work, repetitions, pause, sustained):
    """Seconds of one call: `burst`, the median of `repetitions` single ones, each after `pause` seconds without work, and
    `sustained`, the mean of the calls that fill `sustained` seconds, behind `pause` seconds of the same work. A first call, which
    may compile, is not timed."""
    work()
    clock.wait()
    burst = []
    for _ in range(repetitions):
        clock.sleep(pause)
        clock.hold()
        burst.append(clock.seconds(work, 1))
    calls_in = lambda seconds: max(1, math.ceil(seconds / statistics.median(burst)))  # noqa: E731
    for _ in range(calls_in(pause)):
        work()
    calls = calls_in(sustained)
    return {"burst": statistics.median(burst), "burst_each": burst, "sustained": clock.seconds(work, calls) / calls, "calls": calls}


def short(error):
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def measure(torch, case):
    if case["program"] == "flex":
        try:
            return flex_peer.measure(torch, case)
        except Exception as error:  # noqa: BLE001: as below
            return {"error": short(error)}
    try:
        program = PROGRAMS[case["program"]](torch, case)
    except ValueError as error:
        return {"error": str(error)}
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[case["dtype"]]
    torch.manual_seed(0)
    make = lambda heads, width: torch.randn(program.shape(case[heads], case[width]), device="cuda", dtype=dtype)  # noqa: E731
    shapes = (("heads", "head_dim"), ("kv_heads", "head_dim"), ("kv_heads", "v_head_dim"))
    q, k, v = (make(*shape).requires_grad_() for shape in shapes)
    d_out = make("heads", "v_head_dim")
    results = {}

    def backward(options):
        out = program.forward(q, k, v, **options)
        return lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

    passes = {"forward": lambda: (lambda: program.forward(q, k, v))}
    passes |= {name: (lambda options=options: backward(options)) for name, options in program.modes.items()}
    for name, prepare in passes.items():
        try:
            results[name] = rates(Clock(torch), prepare(), case["repetitions"], case["pause"], case["sustained"])
        except Exception as error:  # noqa: BLE001: compilers of kernels have exceptions of their own
            results[name] = {"error": short(error)}
    return results


def flash_attention():
    """The version of FlashAttention-4, or None where it cannot be imported."""
    try:
        from flash_attn import cute  # noqa: F401
    except Exception as error:  # noqa: BLE001: what it stands on looks for a GPU and a driver when it is imported
        print(f"FlashAttention-4 is left out: {error}", file=sys.stderr)
        return None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("flash-attn-4")
    return "unknown version"


def main():
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    say = lambda answer: print(json.dumps(answer), file=answers, flush=True)  # noqa: E731
    import torch
    import torch.nn.attention
    say({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
         "flash_attn": flash_attention()})
    for line in sys.stdin:
        say(measure(torch, json.loads(line)))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the next program on this GPU gets all of its memory


if __name__ == "__main__":
    main()
