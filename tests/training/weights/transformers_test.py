#!/usr/bin/env python3
"""Whether transformers gets from an export the model and the tokenizer that were imported.

usage: transformers_test.py ANNULUS_WEIGHTS
       transformers_test.py --load EXPORTED   # what each interpreter does

Every interpreter of ANNULUS_TRANSFORMERS (paths with : between them; python3 and /usr/bin/python3 without it) that has transformers
loads the export of golden models, to which token ids and a tokenizer are added; one with torch the weights, too, and compares logits
(tests/oracle/golden.py). The exit status is 77, which ctest shows as skipped, when none has transformers.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # nothing is left in the sources

TESTS = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = TESTS / "training" / "weights" / "golden"
FAMILIES = ["llama3", "qwen2", "llama3_v5", "phi3_partial"]
SKIPPED = 77
BEGIN, END, TURN, PAD = (f"<|{name}|>" for name in ("begin_of_text", "endoftext", "eot_id", "pad"))
IDS = {BEGIN: 29, END: 30, TURN: 31, PAD: 32}  # behind the letters and pairs of tokenizer()
TOKEN_IDS = {"bos_token_id": 29, "eos_token_id": [30, 31], "pad_token_id": 32}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|eot_id|>{% endfor %}"
LETTERS = "Ġabcdefghijklmnopqrstuvwxyz"


def added(token):
    return {"id": IDS[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}


def tokenizer():
    """As Llama 3 has it, with the letters alone."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)} | {"th": 27, "the": 28}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": ["t h", "th e"]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added(token) for token in IDS],
            "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}


# Code and what names it must stay behind.
FILES = {"tokenizer.json": tokenizer(),
         "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": TURN,
                                   "pad_token": PAD, "clean_up_tokenization_spaces": False, "model_max_length": 10 ** 30,
                                   "added_tokens_decoder": {str(i): {k: v for k, v in added(token).items() if k != "id"}
                                                            for token, i in IDS.items()},
                                   "auto_map": {"AutoTokenizer": ["tokenization.Tokenizer", None]}},
         "special_tokens_map.json": {"bos_token": BEGIN, "eos_token": TURN, "pad_token": PAD},
         "generation_config.json": TOKEN_IDS | {"do_sample": True, "temperature": 0.625, "top_p": 0.875}}


def write_model(family, folder):
    shutil.copytree(GOLDEN / family / "model", folder)
    config = json.loads((folder / "config.json").read_text()) | TOKEN_IDS | {"auto_map": {"AutoModel": "modeling.Model"}}
    for name, contents in (FILES | {"config.json": config}).items():
        (folder / name).write_text(json.dumps(contents, indent=2))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    for name in ("tokenization.py", "modeling.py"):
        (folder / name).write_text("raise SystemExit('this runs nowhere')\n")


def export(program, family, folder):
    write_model(family, folder / "model")
    for command in (["import", "model", "imported"], ["export", "imported", "exported"]):
        subprocess.run([program, *command], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    exported = folder / "exported"
    names = sorted(path.name for path in exported.iterdir())
    assert names == sorted([*FILES, "chat_template.jinja", "config.json", "model.safetensors"]), names
    assert not any("auto_map" in path.read_text() for path in exported.glob("*.json"))
    return exported


def load(folder):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig, __version__
    for family in FAMILIES:
        exported = folder / family
        config = AutoConfig.from_pretrained(exported)
        assert {key: getattr(config, key) for key in TOKEN_IDS} == TOKEN_IDS, config
        generation = GenerationConfig.from_pretrained(exported)
        for key, value in FILES["generation_config.json"].items():
            assert getattr(generation, key) == value, (key, generation)
        words = AutoTokenizer.from_pretrained(exported)
        vocabulary = FILES["tokenizer.json"]["model"]["vocab"] | IDS
        assert words.get_vocab() == vocabulary, words.get_vocab()
        assert max(vocabulary.values()) < config.vocab_size and len(words) <= config.vocab_size
        assert (words.bos_token_id, words.eos_token_id, words.pad_token_id) == (29, 31, 32), words
        assert words("in the<|eot_id|>", add_special_tokens=False).input_ids == [9, 14, 0, 28, 31], words("in the")
        assert words.decode([9, 14, 0, 28]) == "in the"
        turns = [{"role": "user", "content": "the"}]
        assert words.apply_chat_template(turns, tokenize=False) == "the<|eot_id|>"
        print(f"{family:10} transformers {__version__}: configuration and tokenizer are the model's", flush=True)
    try:
        import torch  # noqa: F401
    except ImportError:
        print(f"transformers {__version__} has no torch beside it: it has loaded no weights")
        return 0
    sys.path.insert(0, str(TESTS / "oracle"))
    import golden
    from transformers import AutoModelForCausalLM
    for family in FAMILIES:
        assert golden.loads(family, GOLDEN, folder), family
        model = AutoModelForCausalLM.from_pretrained(folder / family)
        assert model.generation_config.eos_token_id == TOKEN_IDS["eos_token_id"], model.generation_config
    return 0


def version(python):
    """Of its transformers; empty where it has none."""
    command = "import importlib.metadata as m; print(m.version('transformers'))"
    try:
        return subprocess.run([python, "-c", command], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main():
    if sys.argv[1] == "--load":
        return load(pathlib.Path(sys.argv[2]))
    pythons = os.environ.get("ANNULUS_TRANSFORMERS", "python3:/usr/bin/python3").split(":")
    versions = {python: version(python) for python in pythons}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for family in FAMILIES:
            (folder / family).mkdir()
            export(sys.argv[1], family, folder / family).rename(folder / f"{family}.exported")
            shutil.rmtree(folder / family)
            (folder / f"{family}.exported").rename(folder / family)
        tried = {found: python for python, found in versions.items() if found}
        for python in tried.values():
            subprocess.run([python, __file__, "--load", scratch], check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    majors = {found.split(".")[0] for found in tried}
    for major in {"4", "5"} - majors:
        print(f"SKIPPED: none of {', '.join(pythons)} has transformers {major}: name one that has in ANNULUS_TRANSFORMERS")
    return 0 if tried else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
