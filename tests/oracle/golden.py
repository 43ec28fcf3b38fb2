#!/usr/bin/env python3
"""Makes the models that tests/training/weights/golden_test.cpp reads: small ones with random weights, saved by transformers itself.

usage: golden.py [FOLDER] [--only FAMILY]  # makes them in FOLDER, tests/training/weights/golden by default
       golden.py --exported EXPORTED     # loads what annulus-weights made of each: EXPORTED/FAMILY

Needs torch and transformers. With transformers 4 (4.57 was tried) it makes the families whose names have no version, with
transformers 5 (5.24 was tried) those that end in _v5: config.json has the form of rope settings of the version that saved it.

For every family: FAMILY/model (config.json and safetensors, in one of the types that are read), FAMILY/gradients.safetensors, the
gradient of the loss by each tensor, in f32, FAMILY/logits.safetensors, and FAMILY/expected.json with token ids, targets
(-1: none) and the sum of the cross-entropies. All are computed in double precision as far as transformers does (norms, softmax and
rotary positions are in fp32 there).

FAMILY/bf16.json has transformers' own errors in bf16, of the same configuration and tokens with the weights of hashed_weights() and the
seeds 0 to 4: ‖x − exact‖ / ‖exact‖ of the logits, of the tokens' cross-entropies (their sum may be right by chance) and of each
gradient. bf16 holds these weights exactly, so that the errors are those of the computation alone. The loss in double precision shows
that whoever reads it has the same weights.

gpt_oss_attention_v5 is no family: the attention layers of gpt-oss, with a dense feed-forward layer behind them. Its config.json is
one that Annulus refuses.

--exported shows that the version of transformers at hand reads exports: all weights are those of FAMILY/model, and its logits
of them in fp32 are FAMILY/logits.safetensors. The exit status is 1 when one has not.
"""

import argparse
import json
import pathlib
import shutil
import sys

import numpy
import torch
from transformers.models.llama.modeling_llama import LlamaMLP
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3Config, Gemma3ForCausalLM,
                          Gemma3ForConditionalGeneration, Gemma3TextConfig, GptOssConfig, GptOssForCausalLM,
                          LlamaConfig, LlamaForCausalLM, MinistralConfig, MinistralForCausalLM, MistralConfig, MistralForCausalLM,
                          Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM, __version__)

sys.dont_write_bytecode = True  # nothing is left in the sources

NEW_FORM = int(__version__.split(".")[0]) >= 5
F32_LIMIT = 1e-5
TOKENS = 48
SHAPE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": TOKENS, "tie_word_embeddings": False}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 8.0}
WINDOW_FIRST = ["sliding_attention", "full_attention"]
NO_PAD = {"pad_token_id": None}  # whose row of the embedding would have no gradient in transformers
OLMO3 = NO_PAD | {"sliding_window": 20, "layer_types": WINDOW_FIRST}
GEMMA = NO_PAD | {"sliding_window": 20, "query_pre_attn_scalar": 24, "tie_word_embeddings": True}
BF16_SEEDS = range(5)
SEEDS = {"olmo": 200, "gemma": 200, "gpt_oss": 1000}  # with which the folders were made; 0 for others
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


class DenseMlp(LlamaMLP):
    """In the place of gpt-oss's experts, whose logits of the router come second."""

    def forward(self, x):
        return super().forward(x), None


class DenseGptOss(GptOssForCausalLM):
    """The attention of gpt-oss in a model without experts, which has no name in transformers."""

    def __init__(self, config):
        super().__init__(config)
        config.mlp_bias = False
        for layer in self.model.layers:
            layer.mlp = DenseMlp(config)


GPT_OSS = NO_PAD | {"sliding_window": 20, "num_local_experts": 2, "num_experts_per_tok": 1}
# Classes, the type of the saved weights, rope theta (or one for each type of layer) and scaling, and what else the configuration has.
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, F32, 1e4, None, {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama3": (LlamaConfig, LlamaForCausalLM, BF16, 5e5, LLAMA3, {"tie_word_embeddings": True}),
    "mistral": (MistralConfig, MistralForCausalLM, F16, 1e4, None, {"sliding_window": 20}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, BF16, 1e6, YARN, {"use_sliding_window": False}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, F32, 1e6, None, {"use_sliding_window": False}),
    "llama3_v5": (LlamaConfig, LlamaForCausalLM, F32, 5e5, LLAMA3, {}),
    "qwen2_v5": (Qwen2Config, Qwen2ForCausalLM, BF16, 1e6, YARN, {"use_sliding_window": False, "tie_word_embeddings": True}),
    "qwen3_mixed_v5": (Qwen3Config, Qwen3ForCausalLM, BF16, 1e6, None, {"use_sliding_window": True, "sliding_window": 20,
                                                                        "max_window_layers": 1}),
    "olmo2_v5": (Olmo2Config, Olmo2ForCausalLM, F32, 5e5, None, NO_PAD),
    "olmo3": (Olmo3Config, Olmo3ForCausalLM, BF16, 5e5, YARN, OLMO3),
    "olmo3_v5": (Olmo3Config, Olmo3ForCausalLM, F32, {"full_attention": 5e5, "sliding_attention": 5e5}, YARN, OLMO3),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM, BF16, 2e6, None, NO_PAD | {"no_rope_layer_interval": 2, "tie_word_embeddings": True}),
    "smollm3_v5": (SmolLM3Config, SmolLM3ForCausalLM, F32, 2e6, None, NO_PAD | {"no_rope_layers": [0, 1], "use_sliding_window": True,
                                                                               "sliding_window": 20}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, BF16, 1e6, LINEAR, GEMMA | {"sliding_window_pattern": 2}),
    "gemma3_v5": (Gemma3TextConfig, Gemma3ForCausalLM, F32, {"full_attention": 1e6, "sliding_attention": 1e4}, None,
                  GEMMA | {"layer_types": WINDOW_FIRST}),
    "phi3": (Phi3Config, Phi3ForCausalLM, BF16, 1e4, None, NO_PAD | {"sliding_window": 20}),
    "phi3_v5": (Phi3Config, Phi3ForCausalLM, F32, 25e4, None, NO_PAD),
    "ministral": (MinistralConfig, MinistralForCausalLM, BF16, 1e5, None, {"sliding_window": 20, "layer_types": WINDOW_FIRST}),
    "ministral_v5": (MinistralConfig, MinistralForCausalLM, F32, 1e5, None, {"sliding_window": 20, "layer_types": WINDOW_FIRST}),
    "gpt_oss_attention_v5": (GptOssConfig, DenseGptOss, F32, 15e4, YARN | {"truncate": False}, GPT_OSS),
    # Caps of the size of scores and logits here, for which those of the real models are far too large.
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, BF16, 1e4, None, GEMMA | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0}),
    "gemma2_v5": (Gemma2Config, Gemma2ForCausalLM, F32, 1e4, LINEAR, GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 2.5}),
    "phi3_partial": (Phi3Config, Phi3ForCausalLM, BF16, 1e4, None, NO_PAD | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}),
    "phi3_partial_v5": (Phi3Config, Phi3ForCausalLM, F32, 25e4, None, NO_PAD | {"partial_rotary_factor": 0.25}),
}


def configuration(family):
    make_config, _, _, theta, scaling, more = FAMILIES[family]
    settings = lambda base, of: {"rope_theta": base, **(of or {"rope_type": "default"})}  # noqa: E731
    if not NEW_FORM:
        rope = {"rope_theta": theta, "rope_scaling": scaling}
    elif isinstance(theta, dict):
        rope = {"rope_parameters": {kind: settings(base, scaling if kind == "full_attention" else None) for kind, base in theta.items()}}
    else:
        rope = {"rope_parameters": settings(theta, scaling)}
    return make_config(**(SHAPE | rope | more), attn_implementation="eager", use_cache=False)


def error(value, expected):
    return (torch.linalg.norm(value.double() - expected.double()) / torch.linalg.norm(expected.double())).item()


def losses(logits, targets):
    """Cross-entropies of the tokens, in double precision."""
    return cross_entropy(logits.double(), targets[0], ignore_index=-1, reduction="none")


def in_type(model, dtype):
    """The model in `dtype`, with its buffers as they were: to() rounds inverse frequencies, from_pretrained does not."""
    if not hasattr(model, "exact_buffers"):
        model.exact_buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to(dtype)
    for name, buffer in model.exact_buffers.items():
        module, _, last = name.rpartition(".")
        model.get_submodule(module)._buffers[last] = buffer.clone()


def computed(model, tokens, targets, dtype):
    """Loss, logits and gradients by name, of a model in `dtype`."""
    in_type(model, dtype)
    model.zero_grad()
    logits = model(tokens).logits[0]
    loss = cross_entropy(logits if dtype == torch.float64 else logits.float(), targets[0], ignore_index=-1, reduction="sum")
    loss.backward()
    return loss.item(), logits.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def mean(name, family):
    return 1.0 if "norm" in name and not family.startswith("gemma") else 0.0


def hashed_weights(name, count, mean, seed):
    """Numbers around `mean` with a deviation of 0.2 that any program can make, multiples of 1/128: element i takes the sum of the eight
    bytes of SplitMix64's number i, of a sequence that begins at the FNV-1a hash of "SEED NAME"."""
    begin = 0xCBF29CE484222325
    for byte in f"{seed} {name}".encode():
        begin = (begin ^ byte) * 0x100000001B3 % 2**64
    with numpy.errstate(over="ignore"):
        x = numpy.uint64(begin) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        x = x ^ (x >> numpy.uint64(31))
    bytes_of = x.view(numpy.uint8).reshape(count, 8).astype(numpy.int64)
    return torch.from_numpy(mean + (bytes_of.sum(axis=1) - 1020) // 8 / 128)  # 1020: the mean of the sums, whose deviation is 209


def errors_in_bf16(model, family, tokens, targets, seed):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(hashed_weights(name, parameter.numel(), mean(name, family), seed).view_as(parameter))
    loss, logits, gradients = computed(model, tokens, targets, torch.float64)
    _, rounded_logits, rounded_gradients = computed(model, tokens, targets, BF16)
    return {"seed": seed, "loss": loss, "logits": error(rounded_logits, logits),
            "losses": error(losses(rounded_logits, targets), losses(logits, targets)),
            "gradients": {name: error(rounded_gradients[name], value) for name, value in gradients.items()}}


def make_bf16(model, family, folder, seeds=BF16_SEEDS):
    expected = json.loads((folder / "expected.json").read_text())
    tokens, targets = (torch.tensor([expected[name]]) for name in ("tokens", "targets"))
    found = [errors_in_bf16(model, family, tokens, targets, seed) for seed in seeds]
    (folder / "bf16.json").write_text(json.dumps({"transformers": __version__, "torch": torch.__version__, "models": found}) + "\n")


def make(family, folder):
    _, make_model, dtype, *_ = FAMILIES[family]
    number = list(FAMILIES).index(family)
    torch.manual_seed(number + next((seed for name, seed in SEEDS.items() if family.startswith(name)), 0))
    model = make_model(configuration(family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains away from one, biases away from zero
            parameter.normal_(mean(name, family), 0.2)
            parameter.copy_(parameter.to(F16).to(BF16))  # of either type
    shutil.rmtree(folder, ignore_errors=True)
    in_type(model, dtype)
    model.save_pretrained(folder / "model")
    tokens = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS))
    targets = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS))
    targets[0, ::7] = -1
    loss, logits, gradients = computed(model, tokens, targets, torch.float64)
    save_file({name: gradient.float().contiguous() for name, gradient in gradients.items()}, folder / "gradients.safetensors")
    save_file({"logits": logits.float()}, folder / "logits.safetensors")
    (folder / "model" / "generation_config.json").unlink(missing_ok=True)
    expected = {"transformers": __version__, "torch": torch.__version__, "tokens": tokens[0].tolist(),
                "targets": targets[0].tolist(), "loss": loss}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    make_bf16(model, family, folder)


def beside_images(text, folder):
    """The text of a golden folder inside of a model that sees images."""
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=configuration(text).to_dict(), vision_config=vision, mm_tokens_per_image=4))
    weights = load_file(folder / text / "model" / "model.safetensors")
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            own[name.replace("model.", "model.language_model.", 1)].copy_(value)
    images = folder / text.replace("gemma3", "gemma3_images")
    shutil.rmtree(images, ignore_errors=True)
    model.to(FAMILIES[text][2]).save_pretrained(images / "model")
    (images / "model" / "generation_config.json").unlink(missing_ok=True)


def loads(family, golden, exported):
    """Whether an export of a family is its model."""
    tokens = torch.tensor([json.loads((golden / family / "expected.json").read_text())["tokens"]])
    model = AutoModelForCausalLM.from_pretrained(exported / family, attn_implementation="eager", dtype=F32)  # buffers are not rounded then
    saved, own = load_file(golden / family / "model" / "model.safetensors"), dict(model.named_parameters())
    same = all(torch.equal(own[name].float(), value.float()) for name, value in saved.items()) and own.keys() == saved.keys()
    with torch.no_grad():
        of_logits = error(model(tokens).logits[0], load_file(golden / family / "logits.safetensors")["logits"])
    good = same and of_logits <= F32_LIMIT
    print(f"{family:10} transformers {__version__}: {type(model).__name__}, weights {'the same' if same else 'OTHERS'}, "
          f"logits differ by {of_logits:.1e}{'' if good else '  FAILED'}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "training" / "weights" / "golden")
    parser.add_argument("--only", help="family that is made alone")
    parser.add_argument("--exported", type=pathlib.Path, help="folder of the exports")
    options = parser.parse_args()
    if options.exported:
        families = [family for family in FAMILIES if FAMILIES[family][1] is not DenseGptOss]
        return 0 if all([loads(family, options.folder, options.exported) for family in families]) else 1
    for family in [options.only] if options.only else FAMILIES:
        if family.endswith("_v5") == NEW_FORM:
            make(family, options.folder / family)
            if family.startswith("gemma3"):
                beside_images(family, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
