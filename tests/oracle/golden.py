#!/usr/bin/env python3
"""Makes the models that tests/weights/golden_test.cpp reads: small ones with random weights, saved by transformers itself.

usage: golden.py [FOLDER]        # tests/weights/golden by default; needs torch and transformers (4.50 to 4.57 were tried)

For every family: FAMILY/model (config.json and safetensors, in f32), FAMILY/gradient, the same tensors with the gradient of the
loss in their place, and FAMILY/expected.json with token ids, targets (-1: none) and the sum of the cross-entropies. Loss and
gradient are computed in double precision as far as transformers does (norms, softmax and rotary positions are in fp32 there).
"""

import json
import pathlib
import shutil
import sys

import torch
from torch.nn.functional import cross_entropy
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, __version__)

TOKENS = 48
SHAPE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": TOKENS, "tie_word_embeddings": False}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama3": (LlamaConfig, LlamaForCausalLM, {"rope_theta": 500000.0, "rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 20}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"rope_theta": 1e6, "rope_scaling": YARN, "use_sliding_window": False}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"rope_theta": 1e6, "use_sliding_window": False}),
}


def make(family, folder):
    make_config, make_model, more = FAMILIES[family]
    torch.manual_seed(list(FAMILIES).index(family))
    model = make_model(make_config(**(SHAPE | more), attn_implementation="eager"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains away from one, biases away from zero
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder / "model")
    tokens = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS))
    targets = torch.randint(0, SHAPE["vocab_size"], (1, TOKENS))
    targets[0, ::7] = -1
    model.double()
    loss = cross_entropy(model(tokens).logits[0], targets[0], ignore_index=-1, reduction="sum")
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.float().save_pretrained(folder / "gradient")
    for unused in folder.glob("*/generation_config.json"):
        unused.unlink()
    expected = {"transformers": __version__, "torch": torch.__version__, "tokens": tokens[0].tolist(),
                "targets": targets[0].tolist(), "loss": loss.item()}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def main():
    golden = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "weights" / "golden")
    for family in FAMILIES:
        make(family, golden / family)


if __name__ == "__main__":
    main()
