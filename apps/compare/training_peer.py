#!/usr/bin/env python3
"""An optimizer step of a LLaMA in PyTorch, as its users would make it: FSDP2, context_parallel, torch.compile, cuDNN attention.

usage: torchrun --nproc-per-node GPUS training_peer.py CONFIG --tokens 65536 [--recompute full|selective|none] --out FILE

CONFIG is a configuration of annulus-train, of which the shape in [model] is read. One sequence of random tokens a step, shared by
all ranks; bf16 with fp32 master weights and gradients, fused AdamW; the loss in chunks of 4096 tokens, which the backward pass
computes again, so that logits never lie whole. `full` keeps the input of each layer, `selective` attention's output as well.
Models of another block than LLaMA's (model.qkv_bias, model.norms and others) are refused.
training.py starts it.
"""

import json
import os
import time
import tomllib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import launch

LOSS_ROWS = 4096


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def rotate(x, cosines, sines):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), -1)


class Qkv(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = (shape["heads"], shape["kv_heads"], shape["kv_heads"])
        self.head_dim = shape["head_dim"]
        self.norm = Norm(shape["hidden"])
        self.product = nn.Linear(shape["hidden"], sum(self.heads) * self.head_dim, bias=False)

    def forward(self, x, cosines, sines):
        qkv = self.product(self.norm(x)).view(*x.shape[:2], sum(self.heads), self.head_dim)
        q, k, v = qkv.transpose(1, 2).split(self.heads, 1)
        return rotate(q, cosines, sines).contiguous(), rotate(k, cosines, sines).contiguous(), v.contiguous()


class Ffn(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = Norm(shape["hidden"])
        self.up = nn.Linear(shape["hidden"], 2 * shape["ffn"], bias=False)
        self.down = nn.Linear(shape["ffn"], shape["hidden"], bias=False)

    def forward(self, x):
        gate, up = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.qkv, self.ffn = Qkv(shape), Ffn(shape)
        self.out = nn.Linear(shape["heads"] * shape["head_dim"], shape["hidden"], bias=False)
        self.grouped = shape["heads"] != shape["kv_heads"]

    def forward(self, x, cosines, sines):
        q, k, v = self.qkv(x, cosines, sines)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.ffn(x + self.out(o.transpose(1, 2).flatten(2)))


def keep_attention(_, operation, *__, **___):
    kept = "scaled_dot_product" in str(operation)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class Llama(nn.Module):
    def __init__(self, shape, recompute):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(shape["vocabulary"], shape["hidden"])
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape["layers"]))
        self.norm = Norm(shape["hidden"])
        self.head = nn.Linear(shape["hidden"], shape["vocabulary"], bias=False)
        if shape.get("tied", False):
            self.head.weight = self.embedding.weight

    def run(self, layer, *arguments):
        if self.recompute == "none":
            return layer(*arguments)
        if self.recompute == "full":
            return checkpoint(layer, *arguments, use_reentrant=False)
        return checkpoint(layer, *arguments, use_reentrant=False,
                          context_fn=lambda: create_selective_checkpoint_contexts(keep_attention))

    def part(self, x, targets):
        return F.cross_entropy(self.head(x).float(), targets, reduction="sum")

    def forward(self, tokens, targets, cosines, sines):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = self.run(layer, x, cosines, sines)
        x = self.norm(x).flatten(0, 1)
        parts = zip(x.split(LOSS_ROWS), targets.flatten().split(LOSS_ROWS))
        return sum(checkpoint(self.part, rows, those, use_reentrant=False) for rows, those in parts) / targets.numel()


def sharded(shape, recompute, mesh):
    with torch.device("meta"):
        model = Llama(shape, recompute)
    types = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        layer.qkv.compile()
        layer.ffn.compile()
        fully_shard(layer, mesh=mesh, mp_policy=types)
    fully_shard(model, mesh=mesh, mp_policy=types)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter.to_local() if hasattr(parameter, "to_local") else parameter, std=0.02)
    return model


def angles(tokens, head_dim, theta):
    """cos and sin of all rotary positions: (tokens, head_dim / 2)."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, device="cuda") / head_dim)
    phases = torch.outer(torch.arange(tokens, device="cuda").float(), frequencies)
    return phases.cos().bfloat16(), phases.sin().bfloat16()


def main():
    parser = launch.described(__doc__)
    parser.add_argument("config")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--recompute", default="full", choices=("full", "selective", "none"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out")
    options = parser.parse_args()
    with open(options.config, "rb") as file:
        shape = tomllib.load(file)["model"]
    llama = {"norms": ("before",), "qkv_bias": (False,), "out_bias": (False,), "qk_norm": (False, "none"), "activation": ("silu",), "query_scale": (0,), "soft_cap": (0,), "logit_cap": (0,),
             "gains_from_one": (False,), "scaled_embedding": (False,)}
    for key, values in llama.items():
        if key in shape and shape[key] not in values:
            parser.error(f"{options.config}: model.{key} is not written here: measure a model of LLaMA's block")
    if shape.get("pattern"):
        parser.error(f"{options.config}: model.pattern is not written here: measure a model whose layers are alike")

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cuda", (ranks,))
    model = sharded(shape, options.recompute, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if ranks > 1:
        from torch.distributed.tensor.experimental import context_parallel

    seconds, losses = [], []
    for step in range(options.steps):
        torch.manual_seed(step)
        tokens, targets = (torch.randint(0, shape["vocabulary"], (1, options.tokens), device="cuda") for _ in range(2))
        cosines, sines = angles(options.tokens, shape["head_dim"], shape["rope_theta"])
        buffers = [tokens, targets, cosines, sines]
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()

        def passes():
            loss = model(*buffers)
            loss.backward()
            return loss

        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            if ranks > 1:
                with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers=set(buffers)):
                    loss = passes()
            else:
                loss = passes()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())

    if options.out and dist.get_rank() == 0:
        weights = sum(p.numel() for name, p in model.named_parameters() if name != "embedding.weight" or shape.get("tied", False))
        pairs = options.tokens * (options.tokens + 1) / 2
        attention = 12 * shape["layers"] * shape["heads"] * shape["head_dim"] * pairs
        report = {"seconds": seconds, "losses": losses, "arrays": torch.cuda.max_memory_allocated(),
                  "flops": 6 * weights * options.tokens + attention, "torch": torch.__version__, "gpus": ranks}
        with open(options.out + ".part", "w") as file:
            json.dump(report, file)
        os.replace(options.out + ".part", options.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
