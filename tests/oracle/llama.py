#!/usr/bin/env python3
"""Logits, loss and gradients of one step of annulus-train against PyTorch's, with the same weights on the same tokens.

usage: llama.py [--device cuda] [--limit 1.5] [--table] DUMP [DUMP ...]

Every DUMP is a file of `annulus-train --dump` (docs/formats/tensor-dump.md). From it come the configuration, the
parameters, the tokens and the targets, and what is compared: logits, loss and all gradients. Each is computed twice here:
  exact   from the formulas of LLaMA in double precision, by autograd;
  theirs  by transformers' LlamaForCausalLM in the dtype of the dump; with biases by its Qwen2ForCausalLM, with norms
          of q and k by its Qwen3ForCausalLM, with both by that with attention_bias and a bias of 0 behind attention.
An error is ‖x − exact‖ / ‖exact‖ over a whole tensor. Asked is, of every tensor,
  f32     an error of at most 1e-4, of ours against exact and of ours against theirs;
  bf16    an error of ours of at most `limit` times theirs.
The exit status is 1 when a tensor fails.
"""

import argparse
import sys
import tomllib

import h5py
import torch
from torch.nn.functional import cross_entropy, embedding, silu
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

sys.dont_write_bytecode = True  # nothing is left in the sources

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
IGNORED = -1
F32_LIMIT = 1e-4


class Dump:
    """What one step started from and what came of it."""

    def __init__(self, path, device):
        with h5py.File(path) as file:
            if "parameters" not in file:
                sys.exit(f"{path}: no dump of annulus-train: it holds no parameters")
            self.attributes = dict(file.attrs)
            read = lambda name: torch.from_numpy(file[name][...]).to(device)  # noqa: E731
            self.parameters = {name: read(f"parameters/{name}") for name in file["parameters"]}
            self.gradients = {name: read(f"gradients/{name}") for name in file["gradients"]}
            self.tokens, self.targets = read("tokens").long(), read("targets").long()
            self.loss = read("loss")
            self.logits = read("logits") if "logits" in file else None  # of small steps
        self.path, self.device = path, device
        self.config = tomllib.loads(self.attributes["config"])
        self.dtype = DTYPES[self.config["train"]["dtype"]]
        if self.config["attention"]["mask"] != "causal":
            sys.exit(f"{path}: attention.mask = {self.config['attention']['mask']}: only causal is compared")
        model = self.config["model"]
        if model.get("pattern"):
            sys.exit(f"{path}: model.pattern = {model['pattern']}: only layers of one kind are compared")
        for key, values in {"norms": ("before",), "gains_from_one": (False,), "out_bias": (False,), "qk_norm": (True, False, "none", "head"), "query_scale": (0,), "soft_cap": (0,), "logit_cap": (0,),
                            "activation": ("silu",), "scaled_embedding": (False,)}.items():
            if key in model and model[key] not in values:
                sys.exit(f"{path}: model.{key} = {model[key]}: only the blocks of LLaMA, Qwen2.5 and Qwen3 are compared (golden.py has others)")
        if model.get("rope_fraction", 1) != 1:
            sys.exit(f"{path}: model.rope_fraction = {model['rope_fraction']}: only 1 is compared (golden.py has others)")
        self.bias, self.norm = model.get("qkv_bias", False), model.get("qk_norm", "none") in (True, "head")
        if model.get("rope_scaling", "none") != "none":
            sys.exit(f"{path}: model.rope_scaling = {model['rope_scaling']}: only none is compared (golden.py has others)")


def mean_loss(logits, targets):
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def rms_norm(x, gain, epsilon):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gain


def rotate(x, angles):
    """Rotary positions: element i pairs with i + head_dim / 2. x (sequences, heads, tokens, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def attention(q, k, v):
    """Causal, of one head: (tokens, head_dim)."""
    scores = q @ k.T / q.shape[-1] ** 0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ v


def exact(dump):
    """Loss, logits and gradients by the formulas, in double precision."""
    model, weight = dump.config["model"], {name: p.double().requires_grad_() for name, p in dump.parameters.items()}
    heads, kv_heads, width = model["heads"], model["kv_heads"], model["head_dim"]
    epsilon = torch.tensor(model["norm_epsilon"], dtype=torch.float32).double().item()  # the float of the program
    frequencies = model["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64, device=dump.device) / width)
    angles = torch.arange(dump.tokens.shape[1], dtype=torch.float64, device=dump.device)[:, None] * frequencies
    split = lambda x: x.unflatten(-1, (-1, width)).transpose(1, 2)  # noqa: E731  (sequences, heads, tokens, head_dim)
    x = embedding(dump.tokens, weight["embedding"])
    for layer in range(model["layers"]):
        w = lambda name: weight[f"layers.{layer}.{name}"]  # noqa: B023, E731
        normed = rms_norm(x, w("attention_norm"), epsilon)
        bias = lambda name: w(f"attention.{name}_bias") if dump.bias else 0  # noqa: B023, E731
        q, k, v = (split(normed @ w(f"attention.{name}").T + bias(name)) for name in ("query", "key", "value"))
        if dump.norm:
            q, k = rms_norm(q, w("attention.query_norm"), epsilon), rms_norm(k, w("attention.key_norm"), epsilon)
        q, k = rotate(q, angles), rotate(k, angles)
        out = torch.stack([torch.stack([attention(q[s, h], k[s, h * kv_heads // heads], v[s, h * kv_heads // heads])
                                        for h in range(heads)]) for s in range(len(x))])
        x = x + out.transpose(1, 2).flatten(2) @ w("attention.out").T
        normed = rms_norm(x, w("ffn_norm"), epsilon)
        x = x + (silu(normed @ w("ffn.gate").T) * (normed @ w("ffn.up").T)) @ w("ffn.down").T
    logits = rms_norm(x, weight["final_norm"], epsilon) @ weight["embedding" if model["tied"] else "lm_head"].T
    loss = mean_loss(logits, dump.targets)
    loss.backward()
    return loss.detach(), logits.detach(), {name: w.grad for name, w in weight.items()}


def their_name(name):
    """What transformers calls one of our parameters."""
    if name == "lm_head":
        return "lm_head.weight"
    for ours, theirs in (("embedding", "embed_tokens"), ("final_norm", "norm"), ("attention_norm", "input_layernorm"),
                         ("ffn_norm", "post_attention_layernorm"), ("attention.query_norm", "self_attn.q_norm"),
                         ("attention.key_norm", "self_attn.k_norm"), ("attention.query", "self_attn.q_proj"),
                         ("attention.key", "self_attn.k_proj"), ("attention.value", "self_attn.v_proj"),
                         ("attention.out", "self_attn.o_proj"), ("ffn.", "mlp.")):
        if ours in name:
            name = name.replace(ours, theirs)
            break
    if name.endswith("_bias"):
        return f"model.{name.removesuffix('_bias')}.bias"
    return f"model.{name}{'_proj' if '.mlp.' in name else ''}.weight"


def theirs(dump):
    """Loss, logits and gradients of transformers' model in the dump's dtype."""
    c = dump.config["model"]
    make_config, make_model, more = (
        (Qwen3Config, Qwen3ForCausalLM, {"use_sliding_window": False, "attention_bias": dump.bias}) if dump.norm
        else (Qwen2Config, Qwen2ForCausalLM, {"use_sliding_window": False}) if dump.bias
        else (LlamaConfig, LlamaForCausalLM, {"attention_bias": False, "mlp_bias": False}))
    config = make_config(
        vocab_size=len(dump.parameters["embedding"]), hidden_size=c["hidden"], intermediate_size=c["ffn"],
        num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"], head_dim=c["head_dim"],
        rms_norm_eps=c["norm_epsilon"], rope_theta=c["rope_theta"], tie_word_embeddings=c["tied"], hidden_act="silu",
        rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]},
        max_position_embeddings=dump.tokens.shape[1], use_cache=False, **more,
    )
    model = make_model(config).to(dump.device, dump.dtype)
    # to() rounds inverse frequencies, which from_pretrained keeps in fp32.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(dump.device)
    parameters = dict(model.named_parameters())
    if dump.bias and dump.norm:
        for name in [name for name in parameters if name.endswith("o_proj.bias")]:
            torch.nn.init.zeros_(parameters.pop(name))
    if sorted(parameters) != sorted(map(their_name, dump.parameters)):
        sys.exit(f"transformers has other parameters: {sorted(set(parameters) ^ set(map(their_name, dump.parameters)))}")
    with torch.no_grad():
        for name, value in dump.parameters.items():
            parameters[their_name(name)].copy_(value)
    logits = model(dump.tokens).logits
    loss = mean_loss(logits.float(), dump.targets)
    loss.backward()
    return loss.detach(), logits.detach(), {name: parameters[their_name(name)].grad for name in dump.parameters}


def error(value, expected):
    difference, size = torch.linalg.norm(value.double() - expected.double()), torch.linalg.norm(expected.double())
    return (difference / size).item() if size > 0 else difference.item()


def compare(dump, options):
    """Prints how far ours is; the number of tensors that fail."""
    loss, logits, gradients = exact(dump)
    their_loss, their_logits, their_gradients = theirs(dump)
    tensors = {"loss": (dump.loss.squeeze(), loss, their_loss)}
    if dump.logits is not None:
        tensors["logits"] = (dump.logits, logits, their_logits)
    tensors |= {name: (dump.gradients[name], gradients[name], their_gradients[name]) for name in gradients}
    a = dump.attributes
    print(f"{dump.path}: step {a['step']}, {a['dtype']}, {a['ranks']} ranks, {a['device']}, {a['schedule']}, {a['layout']}; "
          f"{tuple(dump.tokens.shape)} tokens, git {a['git_hash']}")
    width = max(map(len, tensors))
    lines, worst, failed = [], {}, 0
    for name, (ours, right, their) in tensors.items():
        of_ours, of_theirs, between = error(ours, right), error(their, right), error(ours, their)
        if dump.dtype == torch.float32:
            good = max(of_ours, between) <= F32_LIMIT
        else:  # the loss is one number: theirs may be right by chance, to 16-bit rounding of the logits
            good = of_ours <= options.limit * (max(of_theirs, 2**-11) if name == "loss" else of_theirs)
        failed += not good
        lines.append((name, f"{name:{width}}  {of_ours:10.2e}  {of_theirs:10.2e}  {between:10.2e}{'' if good else '  FAILED'}", good))
        for key, value in (("ours", of_ours), ("theirs", of_theirs), ("between", between), ("ratio", of_ours / max(of_theirs, 1e-300))):
            if name in gradients:
                worst[key] = max(worst.get(key, 0), value)
    print(f"{'':{width}}  {'ours':>10}  {'theirs':>10}  {'between':>10}")
    for name, line, good in lines:
        if options.table or not good or name in ("loss", "logits"):
            print(line)
    print(f"{'largest, gradients':{width}}  {worst['ours']:10.2e}  {worst['theirs']:10.2e}  {worst['between']:10.2e}; "
          f"ours at most {worst['ratio']:.2f} of theirs; {len(tensors) - failed} of {len(tensors)} tensors pass")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", metavar="DUMP")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=float, default=1.5, help="largest ratio to PyTorch's error, for bf16")
    parser.add_argument("--table", action="store_true", help="a line for every tensor")
    options = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name() if options.device.startswith('cuda') else options.device}")
    return 1 if sum(compare(Dump(path, options.device), options) for path in options.dumps) else 0


if __name__ == "__main__":
    sys.exit(main())
