#!/usr/bin/env python3
"""PyTorch's context parallelism on the GPUs of one machine, timed pass by pass: what apps/compare/attention.py puts beside ours.

usage: torchrun --nproc-per-node N context_parallel.py --tokens 131072 262144 --out FILE [--nodes M]

Causal attention in bf16 through torch.distributed.tensor.experimental.context_parallel, load-balanced as it is by
default. `--nodes M` makes one machine look like M of N / M GPUs to NCCL (NCCL_HOSTID, loopback sockets). Rank 0 writes
JSON as annulus-bench attention does, with a case for each number of tokens and rotation (schedule; the layout is the backend): times of the slowest rank, in
every repetition and their median, and exposed seconds: time in which a kernel of NCCL runs and no other kernel does, from one profiled pass,
mean of the ranks. What cannot run is listed as unsupported.
"""

import json
import os
import statistics
import time

import launch


def parse():
    parser = launch.described(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", required=True, help="of the whole sequence")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rotations", nargs="+", default=["allgather", "alltoall"], help="how K and V travel")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


OPTIONS = parse()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if OPTIONS.nodes > 1:  # before NCCL is loaded
    os.environ["NCCL_HOSTID"] = f"node{RANK * OPTIONS.nodes // WORLD}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812: context_parallel replaces a name of this module
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor.experimental import context_parallel  # noqa: E402
from torch.distributed.tensor.experimental._attention import set_rotate_method  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

def over_ranks(value, operation):
    number = torch.tensor([value], dtype=torch.float64, device="cuda")
    dist.all_reduce(number, op=operation)
    return number.item()


def timed(action):
    """Seconds of the slowest rank, in each of the repetitions behind one run that warms up, ascending."""
    action()
    seconds = []
    for _ in range(OPTIONS.repetitions):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        seconds.append(over_ranks(time.perf_counter() - start, dist.ReduceOp.MAX))
    return sorted(seconds)


def length(intervals):
    """Of all that they cover."""
    covered, behind = 0, float("-inf")
    for begin, end in sorted(intervals):
        covered, behind = covered + max(0, end - max(begin, behind)), max(end, behind)
    return covered


def exposed(action):
    """Seconds in which NCCL's kernels run and no others do; mean of the ranks."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        action()
        torch.cuda.synchronize()
    communication, compute = [], []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            interval = (event.time_range.start, event.time_range.end)  # µs
            (communication if "nccl" in event.name.lower() else compute).append(interval)
    if WORLD > 1 and not communication:
        raise RuntimeError("context_parallel sent nothing: each GPU computed its own shard alone")
    covered = length(communication) + length(compute) - length(communication + compute)
    return over_ranks((length(communication) - covered) * 1e-6, dist.ReduceOp.SUM) / WORLD


def measure(mesh, tokens, rotation):
    set_rotate_method(rotation)
    torch.manual_seed(0)
    shape = (1, OPTIONS.heads, tokens, OPTIONS.head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2], no_restore_buffers={q, k, v}), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for tensor in (q, k, v):
            tensor.requires_grad_()

        def forward():
            with torch.no_grad():
                F.scaled_dot_product_attention(q, k, v, is_causal=True)

        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        d_out = torch.randn_like(out)

        def backward():
            torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

        passes = {}
        for name, action in (("forward", forward), ("backward", backward)):
            seconds = timed(action)
            passes[name] = {"seconds": statistics.median(seconds), "seconds_each": seconds, "exposed_communication": {"seconds": exposed(action)}}
    return passes


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())  # ranks of emulated nodes may share a GPU
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    mesh = init_device_mesh("cuda", (WORLD,))
    cases, unsupported = [], []
    for tokens in OPTIONS.tokens:
        for rotation in OPTIONS.rotations:
            config = {"tokens": tokens, "schedule": rotation, "layout": "cudnn"}
            try:
                cases.append({"config": config} | measure(mesh, tokens, rotation))
            except (RuntimeError, NotImplementedError) as error:  # torch.OutOfMemoryError is one
                unsupported.append(config | {"reason": str(error).splitlines()[0]})
            torch.cuda.empty_cache()
    if RANK == 0:
        with open(OPTIONS.out, "w") as file:
            json.dump({"program": "PyTorch context_parallel", "version": torch.__version__, "gpu": torch.cuda.get_device_name(),
                       "cudnn": torch.backends.cudnn.version(), "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                       "ranks": WORLD, "nodes": OPTIONS.nodes, "heads": OPTIONS.heads, "head_dim": OPTIONS.head_dim,
                       "cases": cases, "unsupported": unsupported}, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
