"""A stand-in for the package tokenizers where that is not installed: byte-level tokenizer.json without merges.

python3 byte_tokenizer.py prints one, which the package itself reads, too."""

import json


def characters():
    """What byte-level tokenizers write for the bytes, as GPT-2 does: printable ones stand for themselves."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(others)}}


class Encoding:
    def __init__(self, ids):
        self.ids = ids


class Tokenizer:
    encode_special_tokens = False

    def __init__(self, settings):
        self.vocabulary = dict(settings["model"]["vocab"])
        self.vocabulary.update({token["content"]: token["id"] for token in settings["added_tokens"]})

    @staticmethod
    def from_str(text):
        return Tokenizer(json.loads(text))

    def no_truncation(self):
        pass

    def no_padding(self):
        pass

    def get_vocab(self):
        return self.vocabulary

    def token_to_id(self, token):
        return self.vocabulary.get(token)

    def encode(self, text, add_special_tokens=True):
        assert self.encode_special_tokens  # text that spells an added token is not looked for
        table = characters()
        return Encoding([self.vocabulary[table[byte]] for byte in text.encode()])


if __name__ == "__main__":
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": 256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {character: byte for byte, character in characters().items()}, "merges": []}
    print(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end],
                      "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
                      "decoder": byte_level, "model": model}))
