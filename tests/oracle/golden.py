#!/usr/bin/env python3
"""Makes the models that tests/training/weights/golden_test.cpp reads: small ones with random weights, saved by transformers itself.

usage: golden.py [FOLDER]                # makes them in FOLDER, tests/training/weights/golden by default
       golden.py --exported EXPORTED     # loads what annulus-weights made of each: EXPORTED/FAMILY

Needs torch and transformers. With transformers 4 (4.57 was tried) it makes the families whose names have no version, with
transformers 5 (5.24 was tried) those that end in _v5: config.json has the form of rope settings of the version that saved it.

For every family: FAMILY/model (config.json and safetensors, in one of the types that are read), FAMILY/gradient, the same tensors
with the gradient of the loss in their place, in f32, FAMILY/logits.safetensors, and FAMILY/expected.json with token ids, targets
(-1: none) and the sum of the cross-entropies. All are computed in double precision as far as transformers does (norms, softmax and
rotary positions are in fp32 there). bf16 holds all weights exactly, so that transformers' own errors in bf16, which
expected.json has under "bf16", are those of its computation alone: ‖x − exact‖ / ‖exact‖ of the logits, of the tokens' cross-entropies
(their sum may be right by chance) and of each gradient.

--exported shows that the version of transformers at hand reads exports: all weights are those of FAMILY/model, and its logits
of them in fp32 are FAMILY/logits.safetensors. The exit status is 1 when one has not.
"""

import argparse
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, __version__)

sys.dont_write_bytecode = True  # nothing is left in the sources

NEW_FORM = int(__version__.split(".")[0]) >= 5
F32_LIMIT = 1e-5
TOKENS = 48
SHAPE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": TOKENS, "tie_word_embeddings": False}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16}
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# Classes, the type of the saved weights, rope theta and scaling, and what else the configuration has.
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, F32, 1e4, None, {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama3": (LlamaConfig, LlamaForCausalLM, BF16, 5e5, LLAMA3, {"tie_word_embeddings": True}),
    "mistral": (MistralConfig, MistralForCausalLM, F16, 1e4, None, {"sliding_window": 20}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, BF16, 1e6, YARN, {"use_sliding_window": False}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, F32, 1e6, None, {"use_sliding_window": False}),
    "llama3_v5": (LlamaConfig, LlamaForCausalLM, F32, 5e5, LLAMA3, {}),
    "qwen2_v5": (Qwen2Config, Qwen2ForCausalLM, BF16, 1e6, YARN, {"use_sliding_window": False, "tie_word_embeddings": True}),
}


def configuration(family):
    make_config, _, _, theta, scaling, more = FAMILIES[family]
    rope = ({"rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})}} if NEW_FORM
            else {"rope_theta": theta, "rope_scaling": scaling})
    return make_config(**(SHAPE | rope | more), attn_implementation="eager", use_cache=False)


def error(value, expected):
    return (torch.linalg.norm(value.double() - expected.double()) / torch.linalg.norm(expected.double())).item()


def losses(logits, targets):
    """Cross-entropies of the tokens, in double precision."""
    return cross_entropy(logits.double(), targets[0], ignore_index=-1, reduction="none")


def computed(model, tokens, targets, dtype):
    """Loss, logits and gradients by name, of a model in `dtype`."""
    model.to(dtype)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # to() rounds its inverse frequencies, from_pretrained does not
    model.zero_grad()
    logits = model(tokens).logits[0]
    loss = cross_entropy(logits if dtype == torch.float64 else logits.float(), targets[0], ignore_index=-1, reduction="sum")
    loss.backward()
    return loss.item(), logits.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def make(family, folder):
    _, make_model, dtype, *_ = FAMILIES[family]
    torch.manual_seed(list(FAMILIES).index(family))
    model = make_model(configuration(family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains away from one, biases away from zero
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
            parameter.copy_(parameter.to(F16).to(BF16))  # of either type
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder / "model")
    tokens = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS))
    targets = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS))
    targets[0, ::7] = -1
    loss, logits, gradients = computed(model, tokens, targets, torch.float64)
    _, rounded_logits, rounded_gradients = computed(model, tokens, targets, BF16)
    model.float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(gradients[name])
    model.save_pretrained(folder / "gradient")
    save_file({"logits": logits.float()}, folder / "logits.safetensors")
    for unused in folder.glob("*/generation_config.json"):
        unused.unlink()
    expected = {"transformers": __version__, "torch": torch.__version__, "tokens": tokens[0].tolist(),
                "targets": targets[0].tolist(), "loss": loss,
                "bf16": {"logits": error(rounded_logits, logits),
                         "losses": error(losses(rounded_logits, targets), losses(logits, targets)),
                         "gradients": {name: error(rounded_gradients[name], value) for name, value in gradients.items()}}}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def loads(family, golden, exported):
    """Whether an export of a family is its model."""
    tokens = torch.tensor([json.loads((golden / family / "expected.json").read_text())["tokens"]])
    model = AutoModelForCausalLM.from_pretrained(exported / family, attn_implementation="eager")
    saved, own = load_file(golden / family / "model" / "model.safetensors"), dict(model.named_parameters())
    same = all(torch.equal(own[name].float(), value.float()) for name, value in saved.items()) and own.keys() == saved.keys()
    model.float()  # with the rotary positions that belong to it, as in computed()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    with torch.no_grad():
        of_logits = error(model(tokens).logits[0], load_file(golden / family / "logits.safetensors")["logits"])
    good = same and of_logits <= F32_LIMIT
    print(f"{family:10} transformers {__version__}: {type(model).__name__}, weights {'the same' if same else 'OTHERS'}, "
          f"logits differ by {of_logits:.1e}{'' if good else '  FAILED'}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "training" / "weights" / "golden")
    parser.add_argument("--exported", type=pathlib.Path, help="folder of the exports")
    options = parser.parse_args()
    if options.exported:
        return 0 if all([loads(family, options.folder, options.exported) for family in FAMILIES]) else 1
    for family in FAMILIES:
        if family.endswith("_v5") == NEW_FORM:
            make(family, options.folder / family)
    return 0


if __name__ == "__main__":
    sys.exit(main())
